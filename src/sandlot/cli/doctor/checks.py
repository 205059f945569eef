"""Decides from the facts about a machine whether it can serve sandboxes, and how to fix it.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sandlot.cli.images import DEFAULT_IMAGES
from sandlot.cli.terminal.display import size
from sandlot.domain.capacity.machine import Machine, Overcommit, allocatable
from sandlot.domain.environment import Recipe, Tier
from sandlot.domain.session import DEFAULT_ENVIRONMENT
from sandlot.domain.workspaces.workspace import StoreKind

GIB = 1024**3
FREE_DISK_WANTED = 10 * GIB  # for images, their prepared copies and some workspaces
FREE_DISK_NEEDED = 1 * GIB
PID_MAX_LIMIT = 4_194_304  # the kernel's maximum
RUNSC_ARGUMENT = "--host-uds=open"
RUNSC_CONFIG = (
    'Add to "runtimes" in /etc/docker/daemon.json and restart Docker: "runsc": {"path": "/usr/bin/runsc", '
    '"runtimeArgs": ["--platform=systrap", "--network=none", "--host-uds=open", "--directfs=false"]}'
)


class Status(StrEnum):
    """The outcome of a check."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """The outcome of one check, and how to fix a problem."""

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
    """Check whether the engine answers.

    ``denied``: its socket exists, but this user may not use it.
    """
    if problem is None:
        return ok("engine", f"answers at {host}")
    if denied:
        fix = f"Add {user} to the docker group, then log in again: sudo usermod -aG docker {user}"
        return fail("engine", f"{user} has no access to {host}", fix)
    return fail("engine", problem, "Install Docker (https://docs.docker.com/engine/install/) and start it.")


def check_local(host: str) -> Check:
    if host.startswith("unix://"):
        return ok("engine address", "on this machine")
    return fail(
        "engine address",
        f"{host} is not a Unix socket, but sandboxes connect to the worker through one",
        "Run Sandlot on the same machine as Docker, and set DOCKER_HOST to its unix:// address.",
    )


def check_versions(version: Mapping[str, Any], warnings: Sequence[str]) -> list[Check]:
    if not warnings:
        return [ok("versions", f"Docker Engine {version.get('Version', 'unknown')}")]
    fix = (
        "Install a current version: https://docs.docker.com/engine/install/ or "
        "https://gvisor.dev/docs/user_guide/install/"
    )
    return [warn("versions", warning, fix) for warning in warnings]


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
            found.append(fail("runtime runc", "missing", "Install runc, which comes with Docker."))
        elif tier in tiers:
            message = "not installed: environments on gVisor will not start"
            fix = f"Install gVisor (https://gvisor.dev/docs/user_guide/install/). {RUNSC_CONFIG}"
            found.append(warn("runtime runsc", message, fix))
    return found


def check_kernel(info: Mapping[str, Any]) -> list[Check]:
    found = []
    if str(info.get("CgroupVersion")) == "2":
        found.append(ok("cgroups", "version 2"))
    else:
        message = "version 1: limits work, but Docker and Linux are phasing it out"
        found.append(warn("cgroups", message, "Boot with systemd.unified_cgroup_hierarchy=1."))
    if any("name=seccomp" in str(option) for option in info.get("SecurityOptions") or ()):
        found.append(ok("seccomp", "Docker filters system calls"))
    else:
        message = "Docker cannot filter system calls (seccomp), so isolation is weaker"
        found.append(fail("seccomp", message, "Use a kernel with CONFIG_SECCOMP_FILTER."))
    return found


def check_capacity(machine: Machine, overcommit: Overcommit, recipe: Recipe, max_sessions: int) -> Check:
    """Check how many sessions fit, from what the machine has and what each session may use."""
    total, limits = allocatable(machine, overcommit), recipe.environment.limits
    fits = {
        "memory": total.memory_bytes // limits.memory_bytes,
        "cores": int(total.cpus / limits.cpus),
        "processes": total.pids // limits.pids,
    }
    bounds = {**fits, "SANDLOT_MAX_SESSIONS": max_sessions}
    scarce = min(bounds, key=lambda what: bounds[what])
    room, name = bounds[scarce], recipe.environment.name
    figures = (
        f"Memory: {size(machine.memory_bytes)} (overcommit {overcommit.memory:g}), {fits['memory']} fit. "
        f"Cores: {machine.cpus} (overcommit {overcommit.cpus:g}), {fits['cores']} fit. "
        f"Processes: {machine.pids}, {fits['processes']} fit. SANDLOT_MAX_SESSIONS: {max_sessions}"
    )
    if room >= max(1, recipe.pool.size):
        return ok("room", f"enough for {room} {name} sessions. {figures}")
    remedies = {
        "memory": "Add memory, raise SANDLOT_OVERCOMMIT_MEMORY",
        "cores": "Add cores, raise SANDLOT_OVERCOMMIT_CPUS",
        "processes": f"Run `sudo sysctl -w kernel.pid_max={PID_MAX_LIMIT}`",
        "SANDLOT_MAX_SESSIONS": "Raise SANDLOT_MAX_SESSIONS",
    }
    return warn(
        "room",
        f"only {room} {name} sessions fit, limited by {scarce}; the pool alone needs "
        f"{max(1, recipe.pool.size)}. {figures}",
        f"{remedies[scarce]}, or "
        + (
            f"set SANDLOT_POOL_SIZE to at most {room}."
            if room
            else f"lower the limits of environment {name}."
        ),
    )


def check_disk(folder: str, free: int | None) -> Check:
    fix = (
        f"Free some space in {folder}. Run `docker system df` to see what uses it, then `docker image prune`."
    )
    if free is None:
        return warn(
            "disk", f"cannot read how much space is free in {folder}", "Check the free space yourself."
        )
    if free < FREE_DISK_NEEDED:
        needed = size(FREE_DISK_NEEDED)
        return fail("disk", f"only {size(free)} free at {folder}; at least {needed} is needed", fix)
    if free < FREE_DISK_WANTED:
        wanted = size(FREE_DISK_WANTED)
        return warn("disk", f"{size(free)} free at {folder}; {wanted} or more is recommended", fix)
    return ok("disk", f"{size(free)} free at {folder}")


def check_images(present: Mapping[str, str | None], recipes: Mapping[str, Recipe]) -> list[Check]:
    """Check whether the images exist. ``present``: their ids, or None for a missing image."""
    found = []
    for image, image_id in present.items():
        users = [name for name, recipe in recipes.items() if recipe.environment.image == image]
        if image_id is not None:
            found.append(ok(f"image {image}", f"found ({image_id}), used by {', '.join(users)}"))
            continue
        shipped = image.startswith("sandlot/") and "@" not in image
        build = f"Run `sandlot images build {image.removeprefix('sandlot/')}`."
        fix = build if shipped else f"Run `docker pull {image}`."
        if shipped and image.removeprefix("sandlot/") not in DEFAULT_IMAGES:
            found.append(
                ok(f"image {image}", f"not built; to use {', '.join(users)}, {fix[0].lower()}{fix[1:]}")
            )
            continue
        report = fail if DEFAULT_ENVIRONMENT in users else warn
        found.append(report(f"image {image}", f"missing, needed by {', '.join(users)}", fix))
    return found


def check_data_dir(folder: str, problem: str | None) -> Check:
    if problem is None:
        return ok("data folder", folder)
    return fail(
        "data folder", problem, "Choose another folder with SANDLOT_DATA_DIR, or make this one writable."
    )


def check_users(users: str, taken_by: str | None) -> Check:
    """Check the sandboxes' user ids. ``taken_by``: another user of some of them."""
    if taken_by is None:
        return ok("users", f"{users}: one id per sandbox, shared with no other user")
    return warn(
        "users",
        f"{users} overlap with {taken_by}: a user with one of these ids can signal that sandbox's processes",
        "Choose another range with SANDLOT_SANDBOX_USERS.",
    )


def check_port(address: str, *, free: bool, worker: str | None) -> Check:
    if free:
        return ok("port", f"{address} is free")
    if worker is not None:
        return ok("port", f"{address} is in use by the Sandlot server {worker}")
    return fail(
        "port",
        f"{address} is in use by another program",
        "Stop it, or choose another port with SANDLOT_PORT.",
    )


def check_workspaces(
    store: str, why: str, fix: str, problems: Sequence[str], free: int | None, low: int
) -> list[Check]:
    """Check what keeps workspaces. ``problems``: of the storage. ``low``: free bytes below which to warn."""
    if store != StoreKind.BTRFS:
        message = f"in Docker volumes: no quotas, and snapshots are full copies, because {why}"
        return [warn("workspaces", message, fix or "See docs/howto/workspaces.md.")]
    found = [warn("workspaces", why, fix) if fix else ok("workspaces", why)]
    if free is not None and free < low:
        more = "As root, run `sandlot storage init --size SIZE` with a larger size, or delete snapshots."
        found.append(warn("storage", f"{size(free)} free; one workspace may grow by {size(low)}", more))
    for problem in problems:
        what, _, remedy = problem.partition(". ")
        found.append(warn("storage", what, remedy))
    return found
