"""The package cache: what of a registry is asked for, and where the links of its pages lead. Pure."""
