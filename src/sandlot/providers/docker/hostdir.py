"""The worker's own folder on the host: which life of the worker this is, and one folder for each sandbox.

    <data_dir>/lock             held while a provider lives: two must never answer the same agents
    <data_dir>/epoch            grows with every life; agents refuse a worker from an earlier one
    <data_dir>/agent-<hash>-<tier>  the agent's program, mounted into every sandbox
    <data_dir>/s/<id>/secret    what this sandbox's agent proves to know
    <data_dir>/s/<id>/uid       the number of the user and group that only this sandbox has
    <data_dir>/s/<id>/etc/      mounted read-only, file by file: passwd and group, which name that user
    <data_dir>/s/<id>/link/     mounted read-only into the sandbox; holds the socket that its agent dials

A sandbox sees ``link`` alone and cannot write there, so nothing in here is ever named by a sandbox.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from sandlot.domain.environment import Tier
from sandlot.domain.errors import Conflict, InvalidRequest, NotFound
from sandlot.domain.ids import is_sandbox_id
from sandlot.providers.docker.users import DEFAULT_USERS, IMAGE_UID, UserRange, accounts_for
from sandlot.providers.link.handshake import SECRET_BYTES
from sandlot.providers.link.link import SOCKET_NAME

# A Unix socket's path has 108 bytes, the last of them NUL.
MAX_SOCKET_PATH_BYTES = 107
# 64 random bits of the sandbox's id: short enough for the socket's path, and a clash is noticed.
_SHORT_ID_LENGTH = 16
# On runc the agent can be executed and not read. So the kernel lets nobody into the memory of the agent's
# helper, which runs as the sandbox's user, from its first instruction on; and no sandbox can lock or watch
# the file that all of them share. gVisor loads only what it can read. There one process cannot open another's
# memory, and locks and watches stay inside the sandbox.
AGENT_MODES = {Tier.RUNC: 0o111, Tier.RUNSC: 0o555}


@dataclass(frozen=True, slots=True)
class SandboxDirectory:
    path: Path
    secret: bytes
    uid: int

    @property
    def link(self) -> Path:
        return self.path / "link"

    @property
    def etc(self) -> Path:
        return self.path / "etc"


class HostDirectory:
    def __init__(self, data_dir: Path) -> None:
        self.path = data_dir.absolute()
        longest = self._folder("sbx_" + "0" * 32) / "link" / SOCKET_NAME
        excess = len(os.fsencode(longest)) - MAX_SOCKET_PATH_BYTES
        if excess > 0:
            raise InvalidRequest(
                f"data_dir {self.path} is {excess} bytes too long: the sockets below it may have "
                f"{MAX_SOCKET_PATH_BYTES} bytes in their path"
            )
        self._lock: int | None = None
        self._uids: dict[str, int] = {}  # by the name of the sandbox's folder
        self._choosing = Lock()  # sandboxes are made in threads

    def open(self) -> int:
        """Takes the lock and returns this life's epoch; ``Conflict`` if another worker has it."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path.chmod(0o700)
        (self.path / "s").mkdir(mode=0o700, exist_ok=True)
        lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(lock)
            raise Conflict(
                f"another worker uses the data directory {self.path}; give each worker its own"
            ) from error
        self._lock = lock
        self._uids = {folder.name: _uid_in(folder) for folder in (self.path / "s").iterdir()}
        return self._next_epoch()

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def install_agent(self, program: Path) -> dict[Tier, Path]:
        """For each tier a copy of the agent with a name of its own.

        An installed package may lack the executable bit, may be replaced while sandboxes run, and if the
        worker itself runs in a container the engine cannot see it; the data directory is the engine's and
        ours.
        """
        content = program.read_bytes()
        name = f"agent-{hashlib.sha256(content).hexdigest()[:16]}"
        copies = {tier: self.path / f"{name}-{tier}" for tier in AGENT_MODES}
        for tier, copy in copies.items():
            if not copy.exists():
                _write_durably(copy, content, AGENT_MODES[tier])
        return copies

    def make(
        self, sandbox_id: str, users: UserRange = DEFAULT_USERS, accounts: Mapping[str, bytes] | None = None
    ) -> SandboxDirectory:
        """The secret is on the disk before the sandbox starts: the worker's next life can take it over.

        ``accounts``: the image's files in /etc that name users.
        """
        folder = self._folder(sandbox_id)
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError as error:
            raise Conflict(f"sandbox {sandbox_id} exists already") from error
        secret = secrets.token_bytes(SECRET_BYTES)
        with self._choosing:
            uid = self._uids[folder.name] = users.choose(self._uids.values())
        (folder / "link").mkdir()
        (folder / "link").chmod(0o755)
        made = SandboxDirectory(folder, secret, uid)
        made.etc.mkdir()
        for name, content in (accounts or {}).items():
            (made.etc / name).write_bytes(accounts_for(content, uid))
            (made.etc / name).chmod(0o644)
        (folder / "uid").write_text(str(uid), "ascii")  # after a power cut there is no sandbox that has it
        _write_durably(folder / "secret", secret.hex().encode())
        _sync_folder(folder.parent)
        return made

    def find(self, sandbox_id: str) -> SandboxDirectory:
        folder = self._folder(sandbox_id)
        try:
            secret = bytes.fromhex((folder / "secret").read_text("ascii"))
        except (FileNotFoundError, ValueError) as error:
            raise NotFound(f"no secret of sandbox {sandbox_id} is kept here") from error
        if len(secret) != SECRET_BYTES:
            raise NotFound(f"the secret of sandbox {sandbox_id} was not written to its end")
        return SandboxDirectory(folder, secret, _uid_in(folder))

    def remove(self, sandbox_id: str) -> None:
        folder = self._folder(sandbox_id)
        shutil.rmtree(folder, ignore_errors=True)
        if folder.exists():  # as without a free descriptor: told, so that it is tried again
            raise OSError(f"{folder} could not be removed")
        self._uids.pop(folder.name, None)

    def _folder(self, sandbox_id: str) -> Path:
        if not is_sandbox_id(sandbox_id):
            raise InvalidRequest("that is not a sandbox's id")
        return self.path / "s" / sandbox_id.removeprefix("sbx_")[:_SHORT_ID_LENGTH]

    def _next_epoch(self) -> int:
        path = self.path / "epoch"
        try:
            epoch = int(path.read_text("ascii")) + 1
        except FileNotFoundError:
            epoch = 1
        _write_durably(path, str(epoch).encode())
        return epoch


def _uid_in(folder: Path) -> int:
    """Sandboxes made before each had a user of its own have the image's."""
    try:
        return int((folder / "uid").read_text("ascii"))
    except (OSError, ValueError):
        return IMAGE_UID


def _write_durably(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Either the old content or the new is there, also after a power cut."""
    beside = path.with_name(path.name + ".new")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fchmod(file.fileno(), mode)
        os.fsync(file.fileno())
    beside.replace(path)
    _sync_folder(path.parent)


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
