"""What E2B's SDKs expect of ids, keys, tokens and networks, in terms of ours. Pure."""
