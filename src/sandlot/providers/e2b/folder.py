"""The worker's folder for its sandboxes at E2B.

<data_dir>/lock               held while a provider is open
<data_dir>/epoch              grows with every start; agents refuse a worker with a lower epoch
<data_dir>/s/<id>/secret      the secret that this sandbox's agent must prove it holds
<data_dir>/s/<id>/remote      E2B's id of the sandbox, once there is one
<data_dir>/s/<id>/name        the sandbox's whole id, and its environment
<data_dir>/s/<id>/link/       the socket that the carrier dials for the agent
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandlot.domain.errors import Conflict, InvalidRequest, NotFound
from sandlot.domain.ids import is_sandbox_id
from sandlot.providers.link.handshake import SECRET_BYTES

# 64 random bits of the sandbox's id fit into the socket's path.
_SHORT_ID: Final = 16


@dataclass(frozen=True, slots=True)
class RemoteFolder:
    path: Path
    secret: bytes

    @property
    def link(self) -> Path:
        return self.path / "link"

    @property
    def remote_id(self) -> str | None:
        try:
            return (self.path / "remote").read_text("ascii") or None
        except FileNotFoundError:
            return None

    def set_remote_id(self, remote_id: str) -> None:
        _write(self.path / "remote", remote_id.encode())


class WorkerFolder:
    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir.absolute()
        self._lock: int | None = None

    def open(self) -> int:
        """Takes the lock and returns the new epoch. ``Conflict`` if another worker has it."""
        (self._path / "s").mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path.chmod(0o700)
        lock = os.open(self._path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(lock)
            raise Conflict(
                f"Another worker is using the data folder {self._path}. Stop it, or choose another folder "
                "with SANDLOT_DATA_DIR."
            ) from error
        self._lock = lock
        return self._next_epoch()

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def make(self, sandbox_id: str, environment: str) -> RemoteFolder:
        folder = self._folder(sandbox_id)
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError as error:
            raise Conflict(f"Sandbox {sandbox_id} already exists.") from error
        secret = secrets.token_bytes(SECRET_BYTES)
        _write(folder / "name", f"{sandbox_id} {environment}".encode())
        _write(folder / "secret", secret.hex().encode())
        return RemoteFolder(folder, secret)

    def has(self, sandbox_id: str) -> bool:
        return self._folder(sandbox_id).is_dir()

    def recorded(self) -> Iterator[tuple[str, str, float]]:
        """Each sandbox's id and environment, and when its folder was made. Unfinished folders have none."""
        for folder in (self._path / "s").iterdir():
            with contextlib.suppress(OSError):
                sandbox_id, _, environment = (folder / "name").read_text("utf-8").partition(" ")
                if is_sandbox_id(sandbox_id):
                    yield sandbox_id, environment, (folder / "name").stat().st_mtime

    def find(self, sandbox_id: str) -> RemoteFolder:
        folder = self._folder(sandbox_id)
        try:
            secret = bytes.fromhex((folder / "secret").read_text("ascii"))
        except (FileNotFoundError, ValueError) as error:
            raise NotFound(f"Sandbox {sandbox_id} has no secret on this worker.") from error
        if len(secret) != SECRET_BYTES:
            raise NotFound(f"The secret of sandbox {sandbox_id} is incomplete.")
        return RemoteFolder(folder, secret)

    def remove(self, sandbox_id: str) -> None:
        folder = self._folder(sandbox_id)
        shutil.rmtree(folder, ignore_errors=True)
        if folder.exists():
            raise OSError(f"Cannot remove {folder}.")

    def _folder(self, sandbox_id: str) -> Path:
        if not is_sandbox_id(sandbox_id):
            raise InvalidRequest("Not a sandbox id.")
        return self._path / "s" / sandbox_id.removeprefix("sbx_")[:_SHORT_ID]

    def _next_epoch(self) -> int:
        path = self._path / "epoch"
        try:
            epoch = int(path.read_text("ascii")) + 1
        except FileNotFoundError:
            epoch = 1
        _write(path, str(epoch).encode())
        return epoch


def _write(path: Path, content: bytes) -> None:
    """Replaces a file whole, and durably: sandboxes at E2B outlive a power cut here."""
    temporary = path.with_name(path.name + ".new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
