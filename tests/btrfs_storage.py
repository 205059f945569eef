"""A btrfs of the tests' own, in a file. The machine's storage and its fstab are never touched."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandlot.providers.docker.workspaces.storage.file_system import kernel_has_btrfs, mount_at
from sandlot.providers.docker.workspaces.storage.loop_file import MIB, LoopFile, set_up

SIZE = 8 * 1024 * MIB  # sparse
UNMOUNTED_WITHIN_S = 120.0


def skip_without_btrfs() -> None:
    if os.geteuid() != 0 or not kernel_has_btrfs() or shutil.which("mkfs.btrfs") is None:
        pytest.skip("needs root, btrfs and btrfs-progs")


@contextlib.contextmanager
def btrfs_storage(size: int = SIZE) -> Iterator[Path]:
    """A folder on btrfs, as ``sandlot storage init`` makes it."""
    skip_without_btrfs()
    folder = Path(tempfile.mkdtemp(prefix="sandlot-test-btrfs-")).resolve()
    storage = LoopFile(folder / "storage")
    try:
        set_up(storage, size, overcommit=True, say=lambda _: None)
        yield storage.folder
    finally:
        unmount(storage.folder)
        shutil.rmtree(folder)


def unmount(folder: Path) -> None:
    """With what a killed worker has left mounted below it.

    A storage stays busy while anybody starts a container: that copies every mount of the machine for a moment.
    """
    deadline = time.monotonic() + UNMOUNTED_WITHIN_S
    while mount_at(folder) is not None:
        done = subprocess.run(["umount", "-R", str(folder)], capture_output=True, text=True)
        if done.returncode != 0:
            assert time.monotonic() < deadline, done.stderr
            time.sleep(0.2)
