"""The fake's network: it decides as a worker does, and leads nowhere."""
