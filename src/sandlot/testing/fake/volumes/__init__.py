"""The fake's volumes."""
