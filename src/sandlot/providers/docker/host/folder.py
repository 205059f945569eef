"""The worker's own folder on the host. It has what ``DataFolder`` says, and for Docker:

    <data_dir>/agent-<hash>-<tier>  the agent's program, mounted into every sandbox
    <data_dir>/s/<id>/uid       the id of the user and group that only this sandbox has
    <data_dir>/s/<id>/etc/      passwd and group, which name that user; each mounted read-only
    <data_dir>/s/<id>/link/     holds the socket that the agent dials; mounted read-only

A sandbox sees only ``link`` as a folder and cannot write there, so it never chooses a name here.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from sandlot.domain.environment import Tier
from sandlot.domain.errors import InvalidRequest
from sandlot.providers.data_folder import DataFolder, sync_folder, write_durably
from sandlot.providers.docker.host.users import DEFAULT_USERS, IMAGE_UID, UserRange, renumber_accounts
from sandlot.providers.link.handshake import SECRET_BYTES
from sandlot.providers.link.link import SOCKET_NAME

# A Unix socket's path has 108 bytes, the last of them NUL.
MAX_SOCKET_PATH_BYTES = 107
# On runc the agent's program can be executed but not read. So from the first instruction of the
# agent's helper, which runs as the sandbox's user, the kernel lets no other process into its
# memory. And no sandbox can lock or watch the file that all of them share. gVisor loads only
# programs that it can read. There one process cannot open another's memory, and locks and watches
# stay inside the sandbox.
AGENT_MODES = {Tier.RUNC: 0o111, Tier.RUNSC: 0o555}


@dataclass(frozen=True, slots=True)
class SandboxFolder:
    path: Path
    secret: bytes
    uid: int

    @property
    def link(self) -> Path:
        return self.path / "link"

    @property
    def etc(self) -> Path:
        return self.path / "etc"


class HostFolder(DataFolder):
    def __init__(self, data_dir: Path) -> None:
        super().__init__(data_dir)
        longest = self.folder_of("sbx_" + "0" * 32) / "link" / SOCKET_NAME
        excess = len(os.fsencode(longest)) - MAX_SOCKET_PATH_BYTES
        if excess > 0:
            raise InvalidRequest(
                f"The path of the data folder {self.path} is {excess} bytes too long: socket paths "
                f"below it are limited to {MAX_SOCKET_PATH_BYTES} bytes. Choose a shorter path with "
                "SANDLOT_DATA_DIR."
            )
        self._uids: dict[str, int] = {}  # by the name of the sandbox's folder
        self._uid_lock = Lock()  # sandboxes are created in threads

    def open(self) -> int:
        epoch = super().open()
        self._uids = {folder.name: _read_uid(folder) for folder in self.sandboxes.iterdir()}
        return epoch

    def install_agent(self, program: Path) -> dict[Tier, Path]:
        """Copies the agent's program into the data folder, once per tier, and returns the paths.

        Sandboxes cannot use the installed package's file. It may lack the executable bit, and may
        be replaced while sandboxes run. If the worker itself runs in a container, the engine cannot
        see it; the data folder is visible to both.
        """
        content = program.read_bytes()
        name = f"agent-{hashlib.sha256(content).hexdigest()[:16]}"
        copies = {tier: self.path / f"{name}-{tier}" for tier in AGENT_MODES}
        for tier, copy in copies.items():
            if not copy.exists():
                write_durably(copy, content, AGENT_MODES[tier])
        return copies

    def make(
        self,
        sandbox_id: str,
        users: UserRange = DEFAULT_USERS,
        accounts: Mapping[str, bytes] | None = None,
        uid: int | None = None,
    ) -> SandboxFolder:
        """Makes a sandbox's folder.

        The secret is on disk before the sandbox starts, so a restarted worker can adopt the
        sandbox. ``accounts``: the image's files in /etc that name users. ``uid``: the sandbox's user;
        None for a new one.
        """
        folder = self.new_folder(sandbox_id)
        secret = secrets.token_bytes(SECRET_BYTES)
        with self._uid_lock:
            uid = self._uids[folder.name] = users.choose(self._uids.values()) if uid is None else uid
        (folder / "link").mkdir()
        (folder / "link").chmod(0o755)
        created = SandboxFolder(folder, secret, uid)
        created.etc.mkdir()
        for name, content in (accounts or {}).items():
            (created.etc / name).write_bytes(renumber_accounts(content, uid))
            (created.etc / name).chmod(0o644)
        # Need not be durable: no sandbox survives a power cut.
        (folder / "uid").write_text(str(uid), "ascii")
        write_durably(folder / "secret", secret.hex().encode())
        sync_folder(folder.parent)
        return created

    def find(self, sandbox_id: str) -> SandboxFolder:
        folder = self.folder_of(sandbox_id)
        return SandboxFolder(folder, self.secret_of(sandbox_id), _read_uid(folder))

    def remove(self, sandbox_id: str) -> None:
        super().remove(sandbox_id)
        self._uids.pop(self.folder_of(sandbox_id).name, None)


def _read_uid(folder: Path) -> int:
    """Reads a sandbox's uid. Sandboxes created before each had its own user have the image's."""
    try:
        return int((folder / "uid").read_text("ascii"))
    except (OSError, ValueError):
        return IMAGE_UID


async def make_folder(
    host: HostFolder, sandbox_id: str, users: UserRange, accounts: Mapping[str, bytes], uid: int | None = None
) -> SandboxFolder:
    """``HostFolder.make`` in a thread. A caller that is cancelled leaves no folder behind."""
    task = asyncio.ensure_future(asyncio.to_thread(host.make, sandbox_id, users, accounts, uid))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        # A thread cannot be cancelled. Remove the folder if the thread made it, and only then:
        # if it failed, the folder may belong to another create.
        await asyncio.wait([task])
        if task.exception() is None:
            with contextlib.suppress(OSError):
                await asyncio.to_thread(host.remove, sandbox_id)
        raise
