"""What makes a worker the same worker after a restart: its folder.

One process at a time has the folder, by a lock that the kernel takes back when the process ends, however it
ends. So whoever holds it may go on with the lease that its predecessor left, without waiting for its end.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import threading
from dataclasses import dataclass
from pathlib import Path

import msgspec
import structlog

from sandlot.domain.errors import Conflict, EngineProblem

log = structlog.get_logger("sandlot.identity")

LOCK = "member.lock"
KEPT = "member.json"


@dataclass(frozen=True, slots=True)
class _Kept:
    """``folder``: which one this was written in. A copy of it, as on a cloned machine, is another worker."""

    token: str
    epoch: int
    folder: str
    newcomer: bool = False


class Identity:
    """``token`` names this worker to the directory; ``epoch`` is the last that it was given, 0 at first.
    ``newcomer``: until it has dealt with what the directory holds under its name from before this folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock: int | None = None
        # A write runs in a thread, which goes on after the task that waits for it was cancelled.
        self._writing = threading.Lock()
        self.token = secrets.token_hex(16)
        self.epoch = 0
        self.newcomer = True

    def claim(self) -> None:
        """``Conflict`` while another process has the folder."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(self._folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._unusable(error) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(lock, 20, 0).decode("ascii", "replace").strip()
            os.close(lock)
            raise Conflict(
                f"another worker (process {holder or 'unknown'}) works in {self._folder}: stop it, or give "
                "this one a folder of its own (SANDLOT_DATA_DIR)"
            ) from None
        try:
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            os.close(lock)
            raise self._unusable(error) from error
        self._lock = lock
        self._recall()

    def _unusable(self, error: OSError) -> EngineProblem:
        return EngineProblem(
            f"the worker cannot use its folder {self._folder}: {error.strerror}; make room there, or let "
            "this user write to it"
        )

    def keep_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self._keep()

    def settle(self) -> None:
        self.newcomer = False
        self._keep()

    def _keep(self) -> None:
        """On disk when it returns, or as it was: never half. Writes nothing once the folder is released."""
        with self._writing:
            if self._lock is not None:
                self._write()

    def _write(self) -> None:
        text = msgspec.json.encode(_Kept(self.token, self.epoch, self._which(), self.newcomer))
        new = self._folder / f"{KEPT}.new"
        try:
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            new.replace(self._folder / KEPT)
        except OSError as error:
            # Needed only after a restart that finds an emptied directory: no reason not to work now.
            log.warning("the worker's epoch could not be kept", folder=str(self._folder), error=str(error))

    def release(self) -> None:
        """Waits for a write that has begun: after this, the folder may be another process's, or gone."""
        with self._writing:
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None

    def _recall(self) -> None:
        try:
            kept = msgspec.json.decode((self._folder / KEPT).read_bytes(), type=_Kept)
        except FileNotFoundError:
            return
        except (OSError, msgspec.DecodeError) as error:
            log.warning("the worker's epoch is unreadable", folder=str(self._folder), error=str(error))
            return
        self.epoch, self.newcomer = kept.epoch, kept.newcomer
        if kept.folder == self._which():
            self.token = kept.token

    def _which(self) -> str:
        assert self._lock is not None
        status = os.fstat(self._lock)
        return f"{status.st_dev}:{status.st_ino}"
