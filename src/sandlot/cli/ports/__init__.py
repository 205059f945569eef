"""Commands about the ports of sandboxes."""
