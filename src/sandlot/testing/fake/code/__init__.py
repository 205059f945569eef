"""The fake's code contexts: cells that a test scripts, and very small Python."""
