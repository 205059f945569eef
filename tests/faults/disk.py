"""A small disk of the tests' own: a file with a file system in it, mounted by way of a loop device."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from pathlib import Path

MIB = 1024 * 1024
SPARE_BYTES = 4096
FREED_WITHIN_S = 60.0


class SmallDisk:
    def __init__(self, mib: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="sandlot-test-disk-"))
        self.path = self.folder / "mounted"
        self.path.mkdir()
        image = self.folder / "image"
        with image.open("wb") as file:
            file.truncate(mib * MIB)
        _run("mkfs.ext4", "-q", "-m", "0", str(image))
        _run("mount", "-o", "loop", str(image), str(self.path))

    @property
    def free_bytes(self) -> int:
        return shutil.disk_usage(self.path).free

    def fill(self) -> None:
        """To the last block, as far as it is there when it is asked for."""
        with (self.path / "filler").open("ab", buffering=0) as filler:
            for size in (MIB, SPARE_BYTES, 1):
                piece = b"x" * size
                try:
                    while True:
                        filler.write(piece)
                except OSError:
                    continue

    def make_room(self) -> None:
        (self.path / "filler").unlink()

    def clean(self) -> None:
        deadline = time.monotonic() + FREED_WITHIN_S
        while True:
            try:
                _run("umount", str(self.path))  # and with it goes the loop device
                break
            except subprocess.CalledProcessError:  # the engine that was on it is still going
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
        shutil.rmtree(self.folder)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=120)
