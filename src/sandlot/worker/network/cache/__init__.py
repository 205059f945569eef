"""The package cache of a worker: pages and files of registries, kept on its disk."""
