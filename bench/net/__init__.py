"""What the network of sandboxes costs, and what it costs their neighbours."""
