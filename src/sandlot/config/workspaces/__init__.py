"""Where this machine keeps workspaces, and what workers may do with them."""
