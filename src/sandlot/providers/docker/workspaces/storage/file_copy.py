"""Copies a storage file while it is mounted."""

from __future__ import annotations

import contextlib
import fcntl
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Final

from sandlot.domain.errors import EngineProblem, StorageProblem
from sandlot.providers.docker.workspaces.btrfs.subvolumes import opened
from sandlot.providers.docker.workspaces.storage.loop_file import LoopFile

# linux/fs.h
_FREEZE: Final = 0xC0045877
_THAW: Final = 0xC0045878
_ENDING: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


def copy_frozen(storage: LoopFile, target: Path) -> None:
    """The copy has all files of one moment: until it is there, whoever writes to the storage waits."""
    with _frozen(storage.folder):
        copy_sparse(storage.file, target)


def copy_sparse(source: Path, target: Path) -> None:
    """Holes stay holes. Where the disk's file system can share the blocks, the copy takes no time."""
    command = ["cp", "--sparse=always", "--reflink=auto", "--preserve=mode", "--", str(source), str(target)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0:
        target.unlink(missing_ok=True)
        said = " ".join(done.stderr.split())[-300:]
        raise StorageProblem(f"Cannot copy {source}: {said}. Solve that and repeat the command.")


@contextlib.contextmanager
def _frozen(folder: Path) -> Iterator[None]:
    with opened(folder) as descriptor, _ending_later():
        try:
            fcntl.ioctl(descriptor, _FREEZE, 0)
        except OSError as error:
            raise EngineProblem(
                f"Cannot freeze {folder}: {error.strerror}. Run the command as root. If somebody else has "
                f"frozen it, run: fsfreeze -u {folder}"
            ) from error
        try:
            yield
        finally:
            fcntl.ioctl(descriptor, _THAW, 0)


@contextlib.contextmanager
def _ending_later() -> Iterator[None]:
    """A signal ends the program after the block: a storage that stays frozen stops every sandbox."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def remember(number: int, _: FrameType | None) -> None:
        came.append(number)

    before = {number: signal.signal(number, remember) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(signal.Signals(came[0]))
