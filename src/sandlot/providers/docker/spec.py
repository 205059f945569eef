"""Builds the specification of a sandbox's container. Every sandbox's container is made from it.

Inside a sandbox:

    /.sandlot/agent       the agent, PID 1; a read-only bind of the worker's copy of its program
    /.sandlot/link        only root may enter (0700, in the prepared image): keeps the sandbox user
                          away from the socket below, whatever mode and owner it has on the host
    /.sandlot/link/host   a read-only bind of this sandbox's socket folder on the host
    /.sandlot/run         the agent's own scratch space
    /sandbox              the workspace volume, owned by root
    /sandbox/workspace    the files of the sandbox user, who owns this folder
    /workspace            a symlink to /sandbox/workspace
    /tmp                  in memory, bounded

The agent is root with five capabilities, and drops CHOWN and SETPCAP before any command runs.
Commands run as the sandbox's own user (host/users.py), with none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sandlot.domain.capacity.limits import MIB, Limits
from sandlot.domain.environment import Tier
from sandlot.domain.errors import InvalidRequest
from sandlot.domain.ids import is_sandbox_id
from sandlot.providers.base import SandboxSpec
from sandlot.providers.docker.seccomp import seccomp_json

AGENT_TARGET = "/.sandlot/agent"
LINK_TARGET = "/.sandlot/link/host"
RUN_TARGET = "/.sandlot/run"
VOLUME_TARGET = "/sandbox"
WORKSPACE_TARGET = "/sandbox/workspace"
WORKSPACE_LINK = "/workspace"
VOLUMES_TARGET = "/sandbox/volumes"
VOLUMES_LINK = "/volumes"

LABEL_OWNER = "sandlot.owner"
LABEL_SANDBOX = "sandlot.sandbox"
LABEL_ENVIRONMENT = "sandlot.environment"
LABEL_TIER = "sandlot.tier"
LABEL_CALLER = "sandlot.label."
# On prepared images: their /etc/passwd and /etc/group, in base64.
LABEL_PASSWD = "sandlot.passwd"
LABEL_GROUP = "sandlot.group"

# The engine's names for the tiers' runtimes.
RUNTIMES = {Tier.RUNC: "runc", Tier.RUNSC: "runsc"}

# The agent starts commands as another user (SETUID, SETGID), kills them (KILL), gives the workspace
# to that user (CHOWN), and empties the bounding set (SETPCAP). It drops the last two before any
# command runs.
AGENT_CAPABILITIES = ["CHOWN", "KILL", "SETGID", "SETPCAP", "SETUID"]

# A shorter period throttles in smaller steps, but doubles the start time of interpreters, and is
# far worse on gVisor.
CPU_PERIOD_US = 100_000
RUN_BYTES = 16 * MIB
MEMLOCK_BYTES = 64 * 1024
SIGNALS_PENDING = 4096  # POSIX timers count as well
MESSAGE_QUEUE_BYTES = 819_200  # the kernel's default: ten queues of the usual size
# When the host runs out of memory, the kernel kills sandboxes before the worker and the engine.
OOM_SCORE_ADJ = 500
# gVisor's own kernel runs inside the container's limits. Its threads count as processes, and it
# panics if it cannot start one. So on gVisor the nproc limit, which its kernel enforces, bounds the
# commands' processes.
RUNSC_PIDS = 2048
# Covers gVisor's own kernel, about 5 MB per process, and what commands can allocate before the
# agent stops them. 128 MiB is too little: twenty processes that allocate at once are faster than
# the agent.
RUNSC_MEMORY_OVERHEAD_BYTES = 256 * MIB

# Variables that control the agent's Go runtime. An entry without "=" removes the image's value.
_AGENT_RUNTIME_VARIABLES = ["GODEBUG", "GOGC", "GOMAXPROCS", "GOMEMLIMIT", "GOTRACEBACK"]


@dataclass(frozen=True, slots=True)
class HostPaths:
    """Host paths that the engine mounts read-only.

    ``etc`` maps names in /etc to the files that replace the image's own.
    """

    agent: str
    link: str
    etc: Mapping[str, str] = field(default_factory=dict)


def container_name(sandbox_id: str) -> str:
    """Returns the container's name.

    There is one per sandbox, so a second create fails as a conflict.
    """
    if not is_sandbox_id(sandbox_id):  # the name becomes part of the engine's URLs
        raise InvalidRequest("Not a sandbox id.")
    return f"sandlot-{sandbox_id}"


def container_spec(
    spec: SandboxSpec,
    *,
    owner: str,
    image_id: str,
    paths: HostPaths,
    workspace: Mapping[str, Any],
    seccomp: str | None = None,
) -> dict[str, Any]:
    """Returns the body of ``POST /containers/create``.

    ``workspace`` is the mount from the workspace store.
    """
    environment = spec.environment
    body: dict[str, Any] = {
        "Image": image_id,
        "Entrypoint": [AGENT_TARGET, "init"],
        "Cmd": [],
        "User": "0:0",
        "WorkingDir": "/",
        "Hostname": "sandbox",
        "Env": _AGENT_RUNTIME_VARIABLES,
        "AttachStdin": False,
        "AttachStdout": False,
        "AttachStderr": False,
        "OpenStdin": False,
        "Tty": False,
        # With an image's health check, the engine would exec into the sandbox every few seconds.
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": _host_config(environment.tier, environment.limits, paths, workspace, seccomp),
    }
    labels = {f"{LABEL_CALLER}{name}": value for name, value in spec.labels.items()}
    labels |= {
        LABEL_OWNER: owner,
        LABEL_SANDBOX: spec.id,
        LABEL_ENVIRONMENT: environment.name,
        LABEL_TIER: environment.tier.value,
        # A container would inherit the image's labels, which make every list of containers long.
        LABEL_PASSWD: "",
        LABEL_GROUP: "",
    }
    return {**body, "Labels": labels}


def resource_limits(tier: Tier, limits: Limits) -> dict[str, Any]:
    """Returns the limits that the engine can change while the sandbox runs."""
    memory = limits.memory_bytes + (RUNSC_MEMORY_OVERHEAD_BYTES if tier is Tier.RUNSC else 0)
    return {
        "Memory": memory,
        "MemorySwap": memory,
        "CpuPeriod": CPU_PERIOD_US,
        "CpuQuota": round(limits.cpus * CPU_PERIOD_US),
        "PidsLimit": max(RUNSC_PIDS, limits.pids) if tier is Tier.RUNSC else limits.pids,
    }


def fixed_limits(tier: Tier, limits: Limits) -> dict[str, Any]:
    """Returns the limits that cannot change once the container exists."""
    return {
        "ShmSize": limits.shm_bytes,
        "Tmpfs": {
            "/tmp": f"rw,nosuid,nodev,exec,size={limits.tmp_bytes},nr_inodes=16k,mode=1777",  # noqa: S108
            RUN_TARGET: f"rw,nosuid,nodev,noexec,size={RUN_BYTES},mode=0711",
        },
        "Ulimits": _ulimits(tier, limits),
    }


def _host_config(
    tier: Tier, limits: Limits, paths: HostPaths, workspace: Mapping[str, Any], seccomp: str | None
) -> dict[str, Any]:
    return {
        **resource_limits(tier, limits),
        **fixed_limits(tier, limits),
        "Runtime": RUNTIMES[tier],
        "CapDrop": ["ALL"],
        "CapAdd": AGENT_CAPABILITIES,
        # runsc ignores the profile. It is passed anyway, so that the tiers do not differ in more.
        "SecurityOpt": ["no-new-privileges", f"seccomp={seccomp or seccomp_json()}"],
        "Privileged": False,
        "ReadonlyRootfs": True,
        "Mounts": [
            _read_only_bind(paths.agent, AGENT_TARGET),
            _read_only_bind(paths.link, LINK_TARGET),
            *(_read_only_bind(source, f"/etc/{name}") for name, source in sorted(paths.etc.items())),
            dict(workspace),
        ],
        "IpcMode": "private",
        "CgroupnsMode": "private",
        "OomScoreAdj": OOM_SCORE_ADJ,
        "NetworkMode": "none",
        # Nothing listens there: a name lookup fails at once, and never reaches the host's resolver.
        "Dns": ["127.0.0.1"],
        "LogConfig": {"Type": "none", "Config": {}},
        "RestartPolicy": {"Name": "no"},
        "Init": False,
        "AutoRemove": False,
    }


def _ulimits(tier: Tier, limits: Limits) -> list[dict[str, Any]]:
    ulimits = [
        {"Name": "nofile", "Soft": limits.open_files, "Hard": 4 * limits.open_files},
        {"Name": "core", "Soft": 0, "Hard": 0},
        {"Name": "memlock", "Soft": MEMLOCK_BYTES, "Hard": MEMLOCK_BYTES},
        # The kernel counts these two per user, so per sandbox.
        {"Name": "sigpending", "Soft": SIGNALS_PENDING, "Hard": SIGNALS_PENDING},
        {"Name": "msgqueue", "Soft": MESSAGE_QUEUE_BYTES, "Hard": MESSAGE_QUEUE_BYTES},
    ]
    if tier is Tier.RUNSC:
        ulimits.append({"Name": "nproc", "Soft": limits.pids, "Hard": limits.pids})
    return ulimits


def _read_only_bind(source: str, target: str) -> dict[str, Any]:
    return {"Type": "bind", "Source": source, "Target": target, "ReadOnly": True}
