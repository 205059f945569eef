"""The network of sandboxes: the worker makes their connections, by the policy of each session."""
