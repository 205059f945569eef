"""Brings the agent into a new sandbox and starts it, with commands of E2B's own.

The agent's folder has a name that nobody can guess beforehand, and only the agent's user may enter
the part with the socket. Everything the commands name is quoted or chosen here.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from sandlot.domain.errors import EngineProblem, NotFound
from sandlot.providers.e2b.service import RemoteSandbox

WORKSPACE: Final = "/workspace"
COMMAND_USER: Final = "user"  # of E2B's templates
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
_FACTS: Final = 4
_FOLDER: Final = re.compile(r"/tmp/\.sandlot-[0-9a-f]{16}")  # noqa: S108  # see new_folder


@dataclass(frozen=True, slots=True)
class Place:
    """Where the agent is inside a sandbox, and whom commands run as."""

    folder: str
    uid: int
    gid: int
    user: str

    def setup(self) -> dict[str, Any]:
        return {
            "uid": self.uid,
            "gid": self.gid,
            "user": self.user,
            "home": WORKSPACE,
            "workspace": WORKSPACE,
            "memory_bytes": 0,
            "run_dir": f"{self.folder}/run",
        }


def agent_program(folder: str) -> str:
    return f"{folder}/agent"


def relay_command(folder: str) -> str:
    return f"exec {agent_program(folder)} relay {folder}"


def new_folder() -> str:
    return f"/tmp/.sandlot-{secrets.token_hex(8)}"  # noqa: S108  # unguessable, and made with mkdir


def is_folder(text: str) -> bool:
    return _FOLDER.fullmatch(text) is not None


async def prepare(remote: RemoteSandbox, folder: str, agent_user: str) -> Place:
    """Uploads the agent. It does not run yet, so nothing in the sandbox can meet the relay before it."""
    whom = COMMAND_USER if agent_user == "root" else '"$(id -u)"'
    facts = await remote.run(
        f"set -e; umask 022; mkdir -m 0711 {folder} {folder}/run; mkdir -m 0700 {folder}/link; "
        f'mkdir -p {WORKSPACE}; [ "$(id -u)" != 0 ] || chown {COMMAND_USER}: {WORKSPACE}; '
        f"test -w {WORKSPACE}; id -u {whom}; id -g {whom}; id -un {whom}; uname -m"
    )
    lines = facts.split()
    if len(lines) != _FACTS or not (lines[0].isdigit() and lines[1].isdigit()):
        raise EngineProblem(f"The sandbox told {facts[:200]!r} when asked for its user and machine.")
    uid, gid, user, machine = lines
    if machine not in _ARCHITECTURES:
        raise EngineProblem(f"The sandbox's machine is {machine[:40]!r}, for which there is no agent.")
    await remote.write(agent_program(folder), packaged_agent(_ARCHITECTURES[machine]))
    await remote.run(f"chmod 0711 {agent_program(folder)}")
    return Place(folder, int(uid), int(gid), user)


async def start_agent(remote: RemoteSandbox, folder: str) -> None:
    """The agent dials until a relay listens, so it may start before the relay or after it."""
    command = f"{agent_program(folder)} remote {folder}"
    await remote.run(f"cd / && (setsid nohup {command} </dev/null >/dev/null 2>&1 &)")


def packaged_agent(architecture: str) -> bytes:
    path = Path(str(files("sandlot.providers.link").joinpath("bin", f"sandlot-agent-{architecture}")))
    try:
        return path.read_bytes()
    except OSError as error:
        raise NotFound(
            f"Cannot read the agent's binary for {architecture}: {error.strerror}. Reinstall Sandlot, or in "
            "a clone run `make agent`."
        ) from error
