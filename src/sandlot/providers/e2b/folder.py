"""The worker's folder for its sandboxes at E2B. It has what ``DataFolder`` says, and:

    <data_dir>/s/<id>/remote    E2B's id of the sandbox, once there is one
    <data_dir>/s/<id>/name      the sandbox's whole id, and its environment

What is written here is durable: sandboxes at E2B outlive a power cut.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sandlot.domain.ids import is_sandbox_id
from sandlot.providers.data_folder import DataFolder, write_durably
from sandlot.providers.link.handshake import SECRET_BYTES


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
        write_durably(self.path / "remote", remote_id.encode())


class WorkerFolder(DataFolder):
    def make(self, sandbox_id: str, environment: str) -> RemoteFolder:
        folder = self.new_folder(sandbox_id)
        secret = secrets.token_bytes(SECRET_BYTES)
        write_durably(folder / "name", f"{sandbox_id} {environment}".encode())
        write_durably(folder / "secret", secret.hex().encode())
        return RemoteFolder(folder, secret)

    def has(self, sandbox_id: str) -> bool:
        return self.folder_of(sandbox_id).is_dir()

    def recorded(self) -> Iterator[tuple[str, str, float]]:
        """Each sandbox's id and environment, and when its folder was made. Unfinished folders have none."""
        for folder in self.sandboxes.iterdir():
            with contextlib.suppress(OSError):
                sandbox_id, _, environment = (folder / "name").read_text("utf-8").partition(" ")
                if is_sandbox_id(sandbox_id):
                    yield sandbox_id, environment, (folder / "name").stat().st_mtime

    def find(self, sandbox_id: str) -> RemoteFolder:
        return RemoteFolder(self.folder_of(sandbox_id), self.secret_of(sandbox_id))
