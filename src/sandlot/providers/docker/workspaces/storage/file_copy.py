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
_ENDING: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)


class _Copy:
    """One ``cp``, which ``stop`` ends, whether it runs or is about to start."""

    def __init__(self, source: Path, target: Path) -> None:
        self._source, self._target = source, target
        self._process: subprocess.Popen[str] | None = None
        self._stopped = False

    def run(self) -> None:
        """Holes stay holes. Where the disk's file system can share the blocks, the copy takes no time."""
        options = ("--sparse=always", "--reflink=auto", "--preserve=mode")
        command = ["cp", *options, "--", str(self._source), str(self._target)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, errors="replace") as self._process:
            if self._stopped:  # a signal came before the process was known
                self._process.terminate()
            try:
                _, stderr = self._process.communicate()
            except BaseException:
                self._process.kill()
                raise
        if self._process.returncode != 0:
            self._target.unlink(missing_ok=True)
            said = "it was stopped" if self._stopped else " ".join(stderr.split())[-300:]
            raise StorageProblem(f"Cannot copy {self._source}: {said}. Solve that and repeat the command.")

    def stop(self) -> None:
        self._stopped = True
        if self._process is not None:
            self._process.terminate()


def copy_frozen(storage: LoopFile, target: Path) -> None:
    """The copy has all files of one moment: until it is there, whoever writes to the storage waits.

    ``target`` must be on another file system, or its own copy would wait, too.
    """
    copy = _Copy(storage.file, target)
    with opened(storage.folder) as descriptor, _ending_later(copy), _frozen(storage.folder, descriptor):
        copy.run()


def copy_sparse(source: Path, target: Path) -> None:
    _Copy(source, target).run()


@contextlib.contextmanager
def _frozen(folder: Path, descriptor: int) -> Iterator[None]:
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
def _ending_later(copy: _Copy) -> Iterator[None]:
    """A signal stops the copy, and ends the program after the block. Ctrl-Z does nothing.

    A storage that stays frozen stops every sandbox, so nothing may end or stop the program before it thaws.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def remember(number: int, _: FrameType | None) -> None:
        came.append(number)
        copy.stop()

    before = {number: signal.signal(number, remember) for number in _ENDING}
    before[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(signal.Signals(came[0]))
