"""``DataFolder``: what every provider keeps on the worker's disk, whatever makes its sandboxes.

<data_dir>/lock             held while a provider is open: two must never answer the same agents
<data_dir>/epoch            grows with every start; agents refuse a worker with a lower epoch
<data_dir>/s/<id>/secret    the secret that this sandbox's agent must prove it holds
<data_dir>/s/<id>/link/     holds the socket that leads to the agent
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sandlot.domain.errors import Conflict, InvalidRequest, NotFound
from sandlot.domain.ids import is_sandbox_id
from sandlot.providers.link.handshake import SECRET_BYTES

# 64 random bits of the sandbox's id fit into the socket's path. A new folder detects a collision.
_SHORT_ID_LENGTH: Final = 16


class DataFolder:
    def __init__(self, data_dir: Path) -> None:
        self.path = data_dir.absolute()
        self._lock: int | None = None

    def open(self) -> int:
        """Takes the lock and returns the new epoch.

        Raises ``Conflict`` if another worker has the lock.
        """
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path.chmod(0o700)
        self.sandboxes.mkdir(mode=0o700, exist_ok=True)
        try:
            self._lock = _take_lock(self.path)
        except BlockingIOError as error:
            raise Conflict(
                f"Another worker is using the data folder {self.path}. Stop it, or choose another folder "
                "with SANDLOT_DATA_DIR."
            ) from error
        try:
            return self._next_epoch()
        except BaseException:
            self.close()  # or a repeated open would wait for itself
            raise

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @property
    def sandboxes(self) -> Path:
        """Has a folder for each sandbox."""
        return self.path / "s"

    def folder_of(self, sandbox_id: str) -> Path:
        if not is_sandbox_id(sandbox_id):
            raise InvalidRequest("Not a sandbox id.")
        return self.sandboxes / sandbox_id.removeprefix("sbx_")[:_SHORT_ID_LENGTH]

    def new_folder(self, sandbox_id: str) -> Path:
        folder = self.folder_of(sandbox_id)
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError as error:
            raise Conflict(f"Sandbox {sandbox_id} already exists.") from error
        return folder

    def secret_of(self, sandbox_id: str) -> bytes:
        try:
            secret = bytes.fromhex((self.folder_of(sandbox_id) / "secret").read_text("ascii"))
        except (FileNotFoundError, ValueError) as error:
            raise NotFound(f"Sandbox {sandbox_id} has no secret on this worker.") from error
        if len(secret) != SECRET_BYTES:
            raise NotFound(f"The secret of sandbox {sandbox_id} is incomplete.")
        return secret

    def remove(self, sandbox_id: str) -> None:
        folder = self.folder_of(sandbox_id)
        shutil.rmtree(folder, ignore_errors=True)
        if folder.exists():  # e.g. no free file descriptor; raise, so that the caller tries again
            raise OSError(f"Cannot remove {folder}.")

    def _next_epoch(self) -> int:
        path = self.path / "epoch"
        try:
            epoch = int(path.read_text("ascii")) + 1
        except FileNotFoundError:
            epoch = 1
        write_durably(path, str(epoch).encode())
        return epoch


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep workers out of their folder. Raises ``BlockingIOError`` if one is in it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = _take_lock(folder)
    try:
        yield
    finally:
        os.close(lock)


def _take_lock(folder: Path) -> int:
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise
    return lock


def write_durably(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Replaces a file's content atomically: after a power cut it has the old content or the new."""
    temporary = path.with_name(path.name + ".new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fchmod(file.fileno(), mode)
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
