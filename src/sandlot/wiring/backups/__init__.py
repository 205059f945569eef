"""Backups of one worker: its data folder, and the storage file of its workspaces.

The worker must be stopped, so that records and the files that they name belong together. Its sandboxes
run on meanwhile. They are not in a backup: nothing can bring a process back.
"""
