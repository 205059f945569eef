"""Workspaces as Docker volumes, where there is no btrfs, with snapshots that are full copies.

store.py      the store: what its calls mean
copier.py     containers that copy a volume's files out and in
archives.py   snapshots as files in the worker's data folder, and notes about what is under way
listing.py    what is in an archive, and how two differ
steps.py      the steps at which tests kill the process

How snapshots are made, and why so:

* The worker never opens a path in a volume, and may have no right to. The engine's own archive call rounds
  times to seconds, and does not tell whether files have changed. The agent in the sandbox runs as a user who
  may not read all of its own files (mode 0). So the agent's program runs in a container of its own. That has
  the volume and nothing else: no network, no writable root, and only the capabilities that copying needs. It
  works the same whether the workspace has a sandbox or none.
* The sandbox is paused meanwhile, on both tiers. So a snapshot shows one moment, as on btrfs. A note on the
  disk says so first: a worker that dies in between resumes the sandbox when it starts.
* A snapshot is one file, ``<id>.tar.zst``, which appears by a rename when all of it is on the disk.
* A volume cannot be renamed. So a note on the disk says that one is being filled, and until that is gone the
  workspace does not exist. The next start deletes what is still noted.
* A mark tells whether files have changed: a digest of every inode's number and times, without its content.
"""
