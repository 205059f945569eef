"""The network as a sandbox may see it: addresses and hosts, egress policies, and what they deny."""
