"""Finds the agent's program, and builds the setup that the agent gets on first contact."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

from sandlot.domain.environment import Environment, Tier
from sandlot.domain.errors import EngineProblem, LinkInterrupted
from sandlot.providers.docker.images.preparing import PreparedImage
from sandlot.providers.docker.seccomp import native_machine
from sandlot.providers.docker.spec import RUN_TARGET, WORKSPACE_LINK
from sandlot.providers.link.link import AgentLink

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def packaged_agent() -> Path:
    """Returns the path of the agent for this machine, as installed with this package."""
    machine = native_machine()
    name = f"sandlot-agent-{_ARCHITECTURES.get(machine, machine)}"
    return Path(str(files("sandlot.providers.link").joinpath("bin", name)))


def agent_setup(environment: Environment, image: PreparedImage, uid: int) -> dict[str, Any]:
    return {
        "uid": uid,
        "gid": uid,
        "user": image.user,
        # Not the image's home: the root file system is read-only, and a home must be writable.
        "home": WORKSPACE_LINK,
        "workspace": WORKSPACE_LINK,
        # gVisor's kernel ends the whole sandbox when memory runs out, so the agent watches memory.
        "memory_bytes": environment.limits.memory_bytes if environment.tier is Tier.RUNSC else 0,
        "run_dir": RUN_TARGET,
    }


async def wait_for_agent(link: AgentLink, seconds: float) -> None:
    try:
        await link.wait_ready(seconds)
    except LinkInterrupted as error:
        if link.failure is None:
            reason = f"The container is running, but its agent did not answer within {seconds:g} s."
        else:
            reason = f"The container is running, but its agent failed: {error.message}"
        raise EngineProblem(reason, retryable=True) from error
