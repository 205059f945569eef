"""Deletes subvolumes, and folders of the store with subvolumes inside.

Works by descriptor and name: a process of the sandbox may still hold the files open and change them.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from sandlot.providers.docker.workspaces.btrfs import subvolumes
from sandlot.providers.docker.workspaces.btrfs.steps import StoreStep, reached


def remove_all_in(folder: Path) -> None:
    with subvolumes.opened(folder) as descriptor:
        for name in os.listdir(descriptor):
            _remove(descriptor, os.fsencode(name))


def remove(folder: Path, name: str) -> None:
    """Remove a subvolume or folder. Succeeds if it is gone."""
    with subvolumes.opened(folder) as descriptor:
        _remove(descriptor, os.fsencode(name))
    reached(StoreStep.DELETED)


def _remove(folder: int, name: bytes) -> None:
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if subvolumes.is_subvolume(status, os.fstat(folder)):
            _remove_subvolume(folder, name)
        elif stat.S_ISDIR(status.st_mode):
            with subvolumes.opened(Path(os.fsdecode(name)), folder) as inside:
                for entry in os.listdir(inside):
                    _remove(inside, os.fsencode(entry))
            os.rmdir(name, dir_fd=folder)
        else:
            os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        pass


def _remove_subvolume(folder: int, name: bytes) -> None:
    try:
        subvolumes.destroy(folder, name)
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise
        # Subvolumes are inside. The seccomp profile lets no sandbox make them, but one of before could.
        with subvolumes.opened(Path(os.fsdecode(name)), folder) as subvolume:
            subvolumes.make_writable(subvolume)
        _remove_nested(folder, name)
        subvolumes.destroy(folder, name)


def _remove_nested(folder: int, name: bytes) -> None:
    for _, folders, _, descriptor in os.fwalk(name, topdown=False, follow_symlinks=False, dir_fd=folder):
        here = os.fstat(descriptor)
        for inside in folders:
            if subvolumes.is_subvolume(os.stat(inside, dir_fd=descriptor, follow_symlinks=False), here):
                _remove_subvolume(descriptor, os.fsencode(inside))
