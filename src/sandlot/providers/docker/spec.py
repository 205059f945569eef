"""What a sandbox's container looks like. Every container that serves as a sandbox is made from this builder.

Inside a sandbox:

    /.sandlot/agent       the agent, PID 1; read-only bind of the binary in this package
    /.sandlot/link        root's alone (0700, in the prepared image): keeps the sandbox user away from what is
                          below, whatever mode and owner the worker's socket has on the host
    /.sandlot/link/host   read-only bind of this sandbox's socket directory on the host
    /.sandlot/run         the agent's own scratch space
    /sandbox              the workspace volume, root's; holds /sandbox/workspace, the sandbox user's
    /workspace            symlink to /sandbox/workspace
    /tmp                  memory, bounded

The agent is root with four capabilities and gives up SETPCAP itself; commands run as uid 1000 with none.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sandlot.domain.environment import Tier
from sandlot.domain.errors import InvalidRequest
from sandlot.domain.ids import is_sandbox_id
from sandlot.domain.limits import MIB, Limits
from sandlot.providers.base import SandboxSpec
from sandlot.providers.docker.seccomp import seccomp_json

AGENT_TARGET = "/.sandlot/agent"
LINK_TARGET = "/.sandlot/link/host"
RUN_TARGET = "/.sandlot/run"
VOLUME_TARGET = "/sandbox"
WORKSPACE_TARGET = "/sandbox/workspace"
WORKSPACE_LINK = "/workspace"

LABEL_OWNER = "sandlot.owner"
LABEL_SANDBOX = "sandlot.sandbox"
LABEL_ENVIRONMENT = "sandlot.environment"
LABEL_TIER = "sandlot.tier"
LABEL_SPEC = "sandlot.spec"
LABEL_CALLER = "sandlot.label."
# Of prepared images: their /etc/passwd and /etc/group, in base64.
LABEL_PASSWD = "sandlot.passwd"
LABEL_GROUP = "sandlot.group"

# The names under which the engine knows the tiers' runtimes.
RUNTIMES = {Tier.RUNC: "runc", Tier.RUNSC: "runsc"}

# What the agent needs: to start commands as another user, to kill them, to give the workspace to that user,
# and to empty the bounding set. The last two it drops before any command runs.
AGENT_CAPABILITIES = ["CHOWN", "KILL", "SETGID", "SETPCAP", "SETUID"]

# A short period throttles in smaller steps but doubles the start-up time of interpreters and ruins gVisor's.
CPU_PERIOD_US = 100_000
RUN_BYTES = 16 * MIB
MEMLOCK_BYTES = 64 * 1024
SIGNALS_PENDING = 4096  # POSIX timers count, too
MESSAGE_QUEUE_BYTES = 819_200  # the kernel's own default: ten queues of the usual size
# Under memory pressure of the host, sandboxes die before the worker and the engine.
OOM_SCORE_ADJ = 500
# gVisor's own kernel lives inside the container's limits. Its threads count as processes and it panics when
# it cannot have one, so there the processes of commands are bounded by the nproc limit instead, which its
# kernel enforces.
RUNSC_PIDS = 2048
# What its kernel itself needs, about 5 MB a process, and what commands may take before the agent has stopped
# them: with 128 MiB, twenty processes that allocate at once are faster.
RUNSC_MEMORY_OVERHEAD_BYTES = 256 * MIB

# Variables that steer the agent's own Go runtime. An entry without "=" removes what the image sets.
_AGENT_RUNTIME_VARIABLES = ["GODEBUG", "GOGC", "GOMAXPROCS", "GOMEMLIMIT", "GOTRACEBACK"]


@dataclass(frozen=True, slots=True)
class HostPaths:
    """What the engine mounts from the host, read-only. ``etc``: by name, files that replace the image's."""

    agent: str
    link: str
    etc: Mapping[str, str] = field(default_factory=dict)


def container_name(sandbox_id: str) -> str:
    """One name for one sandbox: creating it twice meets the first instead of making a second."""
    if not is_sandbox_id(sandbox_id):  # it becomes a part of the engine's addresses
        raise InvalidRequest("that is not a sandbox's id")
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
    """The body of ``POST /containers/create``. ``workspace`` is the mount that the workspace store gave."""
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
        # An image's health check would make the engine exec into the sandbox every few seconds.
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": _host_config(environment.tier, environment.limits, paths, workspace, seccomp),
    }
    labels = {f"{LABEL_CALLER}{name}": value for name, value in spec.labels.items()}
    labels |= {
        LABEL_OWNER: owner,
        LABEL_SANDBOX: spec.id,
        LABEL_ENVIRONMENT: environment.name,
        LABEL_TIER: environment.tier.value,
        LABEL_SPEC: spec_hash(body),
        # A container would inherit the image's, and with them make every list of containers long.
        LABEL_PASSWD: "",
        LABEL_GROUP: "",
    }
    return {**body, "Labels": labels}


def spec_hash(body: Mapping[str, Any]) -> str:
    """Equal for sandboxes that are built alike: labels, and where paths and volumes lie, do not count."""
    plain = copy.deepcopy({name: value for name, value in body.items() if name != "Labels"})
    for mount in plain["HostConfig"]["Mounts"]:
        mount["Source"] = ""
        mount.get("VolumeOptions", {}).pop("Labels", None)
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def resource_limits(tier: Tier, limits: Limits) -> dict[str, Any]:
    """The limits that the engine can also change while the sandbox runs."""
    memory = limits.memory_bytes + (RUNSC_MEMORY_OVERHEAD_BYTES if tier is Tier.RUNSC else 0)
    return {
        "Memory": memory,
        "MemorySwap": memory,
        "CpuPeriod": CPU_PERIOD_US,
        "CpuQuota": round(limits.cpus * CPU_PERIOD_US),
        "PidsLimit": max(RUNSC_PIDS, limits.pids) if tier is Tier.RUNSC else limits.pids,
    }


def fixed_limits(tier: Tier, limits: Limits) -> dict[str, Any]:
    """The limits that stay as they are for a container's life."""
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
        # runsc ignores the profile; it is passed all the same, so that the tiers differ in nothing else.
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
        # Nothing listens there: a name lookup fails at once instead of reaching the host's resolver.
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
        # Counted per user: so for this sandbox alone.
        {"Name": "sigpending", "Soft": SIGNALS_PENDING, "Hard": SIGNALS_PENDING},
        {"Name": "msgqueue", "Soft": MESSAGE_QUEUE_BYTES, "Hard": MESSAGE_QUEUE_BYTES},
    ]
    if tier is Tier.RUNSC:
        ulimits.append({"Name": "nproc", "Soft": limits.pids, "Hard": limits.pids})
    return ulimits


def _read_only_bind(source: str, target: str) -> dict[str, Any]:
    return {"Type": "bind", "Source": source, "Target": target, "ReadOnly": True}
