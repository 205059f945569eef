"""Storage of the tests' own. The machine's fstab and its storage are never touched."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sandlot.providers.docker.workspaces.storage.file_system import kernel_has_btrfs, mount_at
from sandlot.providers.docker.workspaces.storage.loop_file import MIB, LoopFile
from tests.btrfs_storage import unmount

SMALL = 300 * MIB


@dataclass
class Place:
    """``storage``: nothing is there yet."""

    folder: Path
    storage: LoopFile
    fstab: Path

    def devices(self) -> list[str]:
        """The loop devices of its file."""
        shown = subprocess.run(["losetup", "-a"], capture_output=True, text=True, check=True).stdout
        return [line.split(":")[0] for line in shown.splitlines() if f"({self.storage.file}" in line]

    def unmount(self) -> None:
        while mount_at(self.storage.folder) is not None:
            subprocess.run(["umount", str(self.storage.folder)], check=True, capture_output=True)

    def unmount_all(self) -> None:
        """With the mounts below it, which a store leaves for its next start."""
        unmount(self.storage.folder)

    def clear(self) -> None:
        self.unmount_all()
        # A mount that a dying container still held lets go of the device a little later.
        deadline = time.monotonic() + 60
        while self.devices():
            assert time.monotonic() < deadline, "a loop device is left"
            time.sleep(0.05)
        shutil.rmtree(self.folder)


@pytest.fixture
def place() -> Iterator[Place]:
    if os.geteuid() != 0 or not kernel_has_btrfs() or shutil.which("mkfs.btrfs") is None:
        pytest.skip("needs root, btrfs and btrfs-progs")
    folder = Path(tempfile.mkdtemp(prefix="sandlot-test-storage-")).resolve()
    place = Place(folder, LoopFile(folder / "storage"), folder / "fstab")
    try:
        yield place
    finally:
        place.clear()
