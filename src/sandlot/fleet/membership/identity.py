"""A worker's identity across restarts, saved in its folder.

A lock lets one process at a time use the folder. The kernel releases the lock when the process
ends, however it ends. So the next holder may continue with the lease of the process before it,
without waiting for that lease to expire.
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

LOCK_FILE = "member.lock"
STATE_FILE = "member.json"


@dataclass(frozen=True, slots=True)
class _SavedIdentity:
    """The contents of the state file.

    ``folder`` identifies the folder that the file was written in. A copy of the folder, as on a
    cloned machine, is another worker.
    """

    token: str
    epoch: int
    folder: str
    newcomer: bool = False


class Identity:
    """The worker's identity. Call ``claim`` before use.

    ``token`` identifies this worker to the directory. ``epoch`` is its last epoch, 0 at first.
    ``newcomer`` is true until the worker has handled the sessions that the directory has under its
    id from before this folder existed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock: int | None = None
        # A write runs in a thread, which continues after the task that awaits it was cancelled.
        self._writing = threading.Lock()
        self.token = secrets.token_hex(16)
        self.epoch = 0
        self.newcomer = True

    def claim(self) -> None:
        """Lock the folder and load the saved identity.

        Raises ``Conflict`` while another process has the folder.
        """
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(self._folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._unusable(error) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(lock, 20, 0).decode("ascii", "replace").strip()
            os.close(lock)
            raise Conflict(
                f"Another worker (process {holder or 'unknown'}) uses {self._folder}. Stop it, or give "
                "this worker its own folder with SANDLOT_DATA_DIR."
            ) from None
        try:
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            os.close(lock)
            raise self._unusable(error) from error
        self._lock = lock
        self._load()

    def _unusable(self, error: OSError) -> EngineProblem:
        return EngineProblem(
            f"The worker cannot use its folder {self._folder}: {error.strerror}. Free some space "
            "there, or make it writable for this user."
        )

    def save_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self._save()

    def settle(self) -> None:
        self.newcomer = False
        self._save()

    def _save(self) -> None:
        """Write the state file atomically. Does nothing once the folder is released."""
        with self._writing:
            if self._lock is not None:
                self._write()

    def _write(self) -> None:
        text = msgspec.json.encode(_SavedIdentity(self.token, self.epoch, self._folder_id(), self.newcomer))
        new = self._folder / f"{STATE_FILE}.new"
        try:
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            new.replace(self._folder / STATE_FILE)
        except OSError as error:
            # Only a restart that meets an emptied directory needs the file, so the worker goes on.
            log.warning("cannot save the worker's epoch", folder=str(self._folder), error=str(error))

    def release(self) -> None:
        """Unlock the folder, after any write in progress.

        After this, another process may use the folder, or it may be deleted.
        """
        with self._writing:
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None

    def _load(self) -> None:
        try:
            saved = msgspec.json.decode((self._folder / STATE_FILE).read_bytes(), type=_SavedIdentity)
        except FileNotFoundError:
            return
        except (OSError, msgspec.DecodeError) as error:
            log.warning("cannot read the worker's epoch", folder=str(self._folder), error=str(error))
            return
        self.epoch, self.newcomer = saved.epoch, saved.newcomer
        if saved.folder == self._folder_id():
            self.token = saved.token

    def _folder_id(self) -> str:
        assert self._lock is not None
        status = os.fstat(self._lock)
        return f"{status.st_dev}:{status.st_ino}"
