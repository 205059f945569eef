"""What a machine has for sandboxes, how much of it is given away, and what more fits.

A sandbox's limits are what it may use, and most use little of them most of the time. So more may be given
away than there is: of memory half as much again, of processor time eight times. Processes are not given
twice: when the kernel has no number left, nobody on the machine can start anything.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from sandlot.domain.errors import Unavailable
from sandlot.domain.limits import Limits

GIB = 1024**3
# For the engine, the worker and the system; of a small machine a part.
MEMORY_FOR_THE_REST = GIB
PART_FOR_THE_REST = 0.25
PIDS_FOR_THE_REST = 2048


@dataclass(frozen=True, slots=True)
class Machine:
    memory_bytes: int
    cpus: int
    pids: int


@dataclass(frozen=True, slots=True)
class Overcommit:
    """How many times what the machine has may be given away."""

    memory: float = 1.5
    cpus: float = 8.0


@dataclass(frozen=True, slots=True)
class Share:
    """Of a machine: what sandboxes may be given in all, or what some of them are given."""

    memory_bytes: int = 0
    cpus: float = 0.0
    pids: int = 0


@dataclass(frozen=True, slots=True)
class MachineUse:
    """``total``: what may be given away, overcommitment included. ``disk_free_bytes`` changes all the time,
    and is no news by itself.
    """

    total: Share
    given: Share
    disk_free_bytes: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Shortage:
    """Of what, by the name of its limit, and how short it is, in words."""

    limit: str
    why: str


@dataclass(frozen=True, slots=True)
class Condition:
    """Of a worker's machine. ``use`` None: nothing is known of it. ``problems``: what to look at."""

    use: MachineUse | None = None
    problems: tuple[str, ...] = ()


def for_sandboxes(machine: Machine, overcommit: Overcommit) -> Share:
    memory = machine.memory_bytes - min(MEMORY_FOR_THE_REST, int(machine.memory_bytes * PART_FOR_THE_REST))
    pids = machine.pids - min(PIDS_FOR_THE_REST, int(machine.pids * PART_FOR_THE_REST))
    return Share(int(memory * overcommit.memory), machine.cpus * overcommit.cpus, pids)


def check_one(machine: Machine, limits: Limits) -> None:
    """More than all of it is not given to a single one. Not for now but for good: another may be larger."""
    for name in ("memory_bytes", "cpus", "pids"):
        if getattr(limits, name) > getattr(machine, name):
            raise Unavailable(
                f"limit {name}={getattr(limits, name)} is more than this machine has "
                f"({getattr(machine, name)}); ask for less",
                retryable=False,
                details={"reason": "capacity", "limit": name},
            )


def given_to(sandboxes: Iterable[Limits]) -> Share:
    memory, cpus, pids = 0, 0.0, 0
    for limits in sandboxes:
        memory += limits.memory_bytes
        cpus += limits.cpus
        pids += limits.pids
    return Share(memory, cpus, pids)


def fitting(use: MachineUse, limits: Limits) -> int:
    """How many more sandboxes with these limits."""
    total, given = use.total, use.given
    return max(
        0,
        min(
            (total.memory_bytes - given.memory_bytes) // limits.memory_bytes,
            # Thousands of tenths do not add up to what they should.
            math.floor((total.cpus - given.cpus) / limits.cpus + 1e-6),
            (total.pids - given.pids) // limits.pids,
        ),
    )


def shortage(use: MachineUse, limits: Limits) -> Shortage | None:
    """What keeps a sandbox with these limits from fitting; None: it fits."""
    total, given = use.total, use.given
    if given.memory_bytes + limits.memory_bytes > total.memory_bytes:
        return Shortage(
            "memory_bytes",
            f"{given.memory_bytes / GIB:.1f} of {total.memory_bytes / GIB:.1f} GiB of memory are given to "
            f"sandboxes, and this one asks for {limits.memory_bytes / GIB:.1f} (SANDLOT_OVERCOMMIT_MEMORY)",
        )
    if given.cpus + limits.cpus > total.cpus + 1e-6:
        return Shortage(
            "cpus",
            f"{given.cpus:g} of {total.cpus:g} cores are given to sandboxes, and this one asks for "
            f"{limits.cpus:g} (SANDLOT_OVERCOMMIT_CPUS)",
        )
    if given.pids + limits.pids > total.pids:
        return Shortage(
            "pids",
            f"{given.pids} of {total.pids} processes are given to sandboxes, and this one asks for "
            f"{limits.pids} (kernel.pid_max)",
        )
    return None


def units(limits: Limits, usual: Limits) -> int:
    """How many sandboxes with the usual limits one with these is as large as."""
    return math.ceil(
        max(
            limits.memory_bytes / usual.memory_bytes,
            limits.cpus / usual.cpus - 1e-6,
            limits.pids / usual.pids,
            1,
        )
    )
