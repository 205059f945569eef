"""A btrfs storage of the benchmark's own, in a loop file that is removed at the end."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sandlot.providers.docker.workspaces.storage.file_system import mount_at
from sandlot.providers.docker.workspaces.storage.loop_file import LoopFile, set_up

UNMOUNTED_WITHIN_S = 120.0
GIB = 1024**3


@dataclass(frozen=True)
class Storage:
    """``folder``: for workers. ``copies``: an empty folder on the same file system."""

    folder: Path
    copies: Path

    def settle(self) -> None:
        """Wait until everything is written, and what was deleted is freed."""
        subprocess.run(["btrfs", "subvolume", "sync", str(self.folder)], check=True, capture_output=True)
        subprocess.run(["sync", "-f", str(self.folder)], check=True)

    def used_bytes(self) -> int:
        self.settle()
        return shutil.disk_usage(self.folder).used


@contextmanager
def open_storage(gigabytes: int) -> Iterator[Storage]:
    folder = Path(tempfile.mkdtemp(prefix="sandlot-bench-storage-")).resolve()
    loop = LoopFile(folder / "storage")
    try:
        set_up(loop, gigabytes * GIB, say=lambda _: None)
        copies = loop.folder / "copies"
        copies.mkdir()
        yield Storage(loop.folder, copies)
    finally:
        unmount(loop.folder)
        shutil.rmtree(folder)


def unmount(folder: Path) -> None:
    """With the mounts below it. While other containers start, a copy of it may be busy for a while."""
    deadline = time.monotonic() + UNMOUNTED_WITHIN_S
    while mount_at(folder) is not None:
        ran = subprocess.run(["umount", "-R", str(folder)], capture_output=True, text=True, check=False)
        assert time.monotonic() < deadline, ran.stderr
        if ran.returncode:
            time.sleep(0.5)
