"""Workspaces as btrfs subvolumes, with quotas, snapshots and copies that share their blocks.

store.py       the store: what its calls mean, in threads, with domain errors
layout.py      its folders, and the steps that change them; a kill between two steps leaves nothing half done
subvolumes.py  the kernel's calls on subvolumes
quotas.py      simple quotas: limits, and what is used
mounts.py      mounts that show a workspace's files as its sandbox's own
sizes.py       what workspaces use, and may use; how much room there is
recounting.py  counts again where what is charged may be too much
reading.py     finds what is stored, and whether it has changed
seeds/         what new workspaces begin with
trees.py       walks: how two trees differ, how large one is
removing.py    deletes subvolumes and what is inside
checks.py      why a folder or an engine cannot be used
errors.py      the file system's errors as domain errors
steps.py       the steps at which tests kill the process
"""
