"""What follows from what was seen of a machine: is it fit to serve sandboxes, what to do if not. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sandlot.cli.display import size
from sandlot.domain.environment import Recipe, Tier
from sandlot.domain.machine import Machine, Overcommit, for_sandboxes
from sandlot.domain.session import DEFAULT_ENVIRONMENT

GIB = 1024**3
FREE_DISK_WANTED = 10 * GIB  # images, their prepared copies, and some workspaces
FREE_DISK_NEEDED = 1 * GIB
PID_MAX_LIMIT = 4_194_304  # the kernel takes no more
RUNSC_ARGUMENT = "--host-uds=open"
RUNSC_CONFIG = (
    'add to "runtimes" in /etc/docker/daemon.json and restart docker: "runsc": {"path": "/usr/bin/runsc", '
    '"runtimeArgs": ["--platform=systrap", "--network=none", "--host-uds=open", "--directfs=false"]}'
)


class Status(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    status: Status
    message: str
    fix: str = ""


def ok(name: str, message: str) -> Check:
    return Check(name, Status.OK, message)


def warn(name: str, message: str, fix: str) -> Check:
    return Check(name, Status.WARN, message, fix)


def fail(name: str, message: str, fix: str) -> Check:
    return Check(name, Status.FAIL, message, fix)


def check_access(host: str, problem: str | None, *, denied: bool, user: str) -> Check:
    """Whether the engine answers at all; ``denied``: its socket is there and does not let us in."""
    if problem is None:
        return ok("engine", f"answers at {host}")
    if denied:
        fix = f"let {user} use the engine, then log in again: sudo usermod -aG docker {user}"
        return fail("engine", f"{user} may not use {host}", fix)
    return fail("engine", problem, "install Docker (https://docs.docker.com/engine/install/) and start it")


def check_local(host: str) -> Check:
    if host.startswith("unix://"):
        return ok("engine address", "on this machine")
    return fail(
        "engine address",
        f"{host} is not on this machine, and sandboxes reach the worker by a Unix socket",
        "run sandlot beside the engine, and set DOCKER_HOST to its unix:// address",
    )


def check_versions(version: Mapping[str, Any], warnings: Sequence[str]) -> list[Check]:
    if not warnings:
        return [ok("versions", f"Docker Engine {version.get('Version', 'unknown')}")]
    return [warn("versions", warning, "update it from its own packages") for warning in warnings]


def check_runtimes(info: Mapping[str, Any], tiers: Sequence[Tier]) -> list[Check]:
    runtimes = info.get("Runtimes") or {}
    found = []
    for tier in (Tier.RUNC, Tier.RUNSC):
        if tier in runtimes:
            arguments = runtimes[tier].get("runtimeArgs") or ()
            if tier is Tier.RUNSC and RUNSC_ARGUMENT not in arguments:
                message = f"registered without {RUNSC_ARGUMENT}: its sandboxes cannot reach the worker"
                found.append(warn("runtime runsc", message, RUNSC_CONFIG))
            else:
                found.append(ok(f"runtime {tier}", "registered with the engine"))
        elif tier is Tier.RUNC:
            found.append(fail("runtime runc", "missing", "install runc, which comes with Docker"))
        elif tier in tiers:
            message = "not installed: environments on gVisor will not start"
            fix = f"install gVisor (https://gvisor.dev/docs/user_guide/install/), then {RUNSC_CONFIG}"
            found.append(warn("runtime runsc", message, fix))
    return found


def check_kernel(info: Mapping[str, Any]) -> list[Check]:
    found = []
    if str(info.get("CgroupVersion")) == "2":
        found.append(ok("cgroups", "version 2"))
    else:
        message = "version 1: limits hold, but engines and kernels are leaving it"
        found.append(warn("cgroups", message, "boot with systemd.unified_cgroup_hierarchy=1"))
    if any("name=seccomp" in str(option) for option in info.get("SecurityOptions") or ()):
        found.append(ok("seccomp", "the engine filters system calls"))
    else:
        message = "the engine cannot filter system calls, so the wall around a sandbox is thinner"
        found.append(fail("seccomp", message, "use a kernel with CONFIG_SECCOMP_FILTER"))
    return found


def check_room(machine: Machine, overcommit: Overcommit, recipe: Recipe, max_sessions: int) -> Check:
    """How many sessions the worker lets in, by what the machine has and what each may use."""
    total, limits = for_sandboxes(machine, overcommit), recipe.environment.limits
    by = {
        "memory": total.memory_bytes // limits.memory_bytes,
        "cores": int(total.cpus / limits.cpus),
        "processes": total.pids // limits.pids,
    }
    scarce = min(by, key=lambda what: by[what])
    room = min(by[scarce], max_sessions)
    message = (
        f"for {room} sessions of {recipe.environment.name}: {size(machine.memory_bytes)} of memory for "
        f"{by['memory']} (given {overcommit.memory:g} times), {machine.cpus} cores for {by['cores']} "
        f"(given {overcommit.cpus:g} times), {machine.pids} processes for {by['processes']}; "
        f"SANDLOT_MAX_SESSIONS {max_sessions}"
    )
    if room >= max(1, recipe.pool.size):
        return ok("room", message)
    mend = {
        "memory": "more memory, or SANDLOT_OVERCOMMIT_MEMORY",
        "cores": "more cores, or SANDLOT_OVERCOMMIT_CPUS",
        "processes": f"sudo sysctl -w kernel.pid_max={PID_MAX_LIMIT}",
    }
    return warn(
        "room", message, f"{mend[scarce]}, or a pool of fewer than {recipe.pool.size} (SANDLOT_POOL_SIZE)"
    )


def check_disk(folder: str, free: int | None) -> Check:
    fix = f"free some room below {folder}: docker system df, then docker image prune"
    if free is None:
        return warn("disk", f"{folder} cannot be seen from here", "look at its free space yourself")
    if free < FREE_DISK_NEEDED:
        return fail("disk", f"{size(free)} free at {folder}", fix)
    if free < FREE_DISK_WANTED:
        return warn("disk", f"{size(free)} free at {folder}", fix)
    return ok("disk", f"{size(free)} free at {folder}")


def check_images(present: Mapping[str, str | None], recipes: Mapping[str, Recipe]) -> list[Check]:
    """``present``: the ids of images, None of those that are not here."""
    found = []
    for image, image_id in present.items():
        users = [name for name, recipe in recipes.items() if recipe.environment.image == image]
        if image_id is not None:
            found.append(ok(f"image {image}", f"here as {image_id}, for {', '.join(users)}"))
            continue
        fix = f"sandlot images build {image.removeprefix('sandlot/')}"
        fix = fix if image.startswith("sandlot/") and "@" not in image else f"docker pull {image}"
        worse = fail if DEFAULT_ENVIRONMENT in users else warn
        found.append(worse(f"image {image}", f"missing, and {', '.join(users)} needs it", fix))
    return found


def check_data_dir(folder: str, problem: str | None) -> Check:
    if problem is None:
        return ok("data folder", folder)
    return fail(
        "data folder", problem, "give another with SANDLOT_DATA_DIR, or make it writable for this user"
    )


def check_users(users: str, taken_by: str | None) -> Check:
    """``taken_by``: who else uses some of these user ids."""
    if taken_by is None:
        return ok("users", f"{users}: one for each sandbox, and nobody else's")
    return warn(
        "users",
        f"{users} overlap with {taken_by}: whoever has one of these ids can signal that sandbox's processes",
        "give sandboxes another range with SANDLOT_SANDBOX_USERS",
    )


def check_port(address: str, *, free: bool, worker: str | None) -> Check:
    if free:
        return ok("port", f"{address} is free")
    if worker is not None:
        return ok("port", f"{address} is in use by the Sandlot server {worker}")
    return fail("port", f"{address} is in use by another program", "stop it, or choose one with SANDLOT_PORT")
