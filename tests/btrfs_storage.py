"""A btrfs of the tests' own, in a file. The machine's storage and its fstab are never touched."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandlot.providers.docker.workspaces.storage.file_system import kernel_has_btrfs, mount_at
from sandlot.providers.docker.workspaces.storage.loop_file import MIB, LoopFile, set_up

SIZE = 8 * 1024 * MIB  # sparse


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
        while mount_at(storage.folder) is not None:
            subprocess.run(["umount", "-R", str(storage.folder)], check=True, capture_output=True)
        shutil.rmtree(folder)
