"""Snapshots in object storage: saved incrementally, and loaded again on any worker.

A snapshot is a manifest: its entries in order, in parts. Files are in chunks, named by a keyed hash of their
content, so that equal content of one tenant is sent once. Chunks and parts are written before the manifest
that needs them. So a worker that dies at any moment leaves a store in which every snapshot is complete.
"""
