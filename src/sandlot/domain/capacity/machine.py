"""What a machine has for sandboxes, how much of it they have been given, and how many more fit.

Most sandboxes use little of their limits most of the time. So a machine may give away more than it
has: 1.5 times its memory and 8 times its processor time. Process ids are not overcommitted: once
the kernel has none left, nothing on the machine can start a process.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sandlot.domain.capacity.limits import Limits
from sandlot.domain.capacity.readiness import Readiness
from sandlot.domain.errors import Unavailable

GIB = 1024**3
# Reserved for the engine, the worker and the system: these amounts, or this fraction of a small
# machine.
RESERVED_MEMORY_BYTES = GIB
RESERVED_FRACTION = 0.25
RESERVED_PIDS = 2048


@dataclass(frozen=True, slots=True)
class Machine:
    memory_bytes: int
    cpus: int
    pids: int


@dataclass(frozen=True, slots=True)
class Overcommit:
    """How many times the machine may give away each resource that it has."""

    memory: float = 1.5
    cpus: float = 8.0


@dataclass(frozen=True, slots=True)
class Resources:
    """Part of a machine: all that sandboxes may be given, or what some have been given.

    memory_bytes: memory in bytes.
    cpus: processor time, in processors.
    pids: how many processes and threads.
    """

    memory_bytes: int = 0
    cpus: float = 0.0
    pids: int = 0


@dataclass(frozen=True, slots=True)
class MachineUse:
    """How much of a machine sandboxes have.

    total: what the machine may give away, with overcommitment.
    given: what it has given to sandboxes.
    disk_free_bytes: free space on its disk; null if the worker does not say.
    """

    total: Resources
    given: Resources
    # It changes all the time, so a change of it alone is not worth a report.
    disk_free_bytes: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Shortage:
    """What a machine lacks: the name of the limit, and an explanation in words."""

    limit: str
    why: str


@dataclass(frozen=True, slots=True)
class Condition:
    """The condition of a worker's machine.

    ``use`` is None if the machine's size is unknown. ``problems``: what an operator should look at.
    ``readiness``: how far the worker is with each environment.
    """

    use: MachineUse | None = None
    problems: tuple[str, ...] = ()
    readiness: Mapping[str, Readiness] = field(default_factory=dict)


def allocatable(machine: Machine, overcommit: Overcommit) -> Resources:
    """What sandboxes may be given in total on this machine."""
    memory = machine.memory_bytes - min(RESERVED_MEMORY_BYTES, int(machine.memory_bytes * RESERVED_FRACTION))
    pids = machine.pids - min(RESERVED_PIDS, int(machine.pids * RESERVED_FRACTION))
    return Resources(int(memory * overcommit.memory), machine.cpus * overcommit.cpus, pids)


def check_fits_machine(machine: Machine, limits: Limits) -> None:
    """Raise ``Unavailable`` if one sandbox asks for more than the whole machine.

    Overcommitment does not help here. The error is not retryable: only a larger machine could serve
    it.
    """
    for name in ("memory_bytes", "cpus", "pids"):
        if getattr(limits, name) > getattr(machine, name):
            raise Unavailable(
                f"Limit {name}={getattr(limits, name)} exceeds what this machine has "
                f"({getattr(machine, name)}). Ask for less, or use a larger machine.",
                retryable=False,
                details={"reason": "capacity", "limit": name},
            )


def total_limits(sandboxes: Iterable[Limits]) -> Resources:
    memory, cpus, pids = 0, 0.0, 0
    for limits in sandboxes:
        memory += limits.memory_bytes
        cpus += limits.cpus
        pids += limits.pids
    return Resources(memory, cpus, pids)


def count_fitting(use: MachineUse, limits: Limits) -> int:
    """How many more sandboxes with these limits fit."""
    total, given = use.total, use.given
    return max(
        0,
        min(
            (total.memory_bytes - given.memory_bytes) // limits.memory_bytes,
            # The small term makes up for the rounding errors of thousands of added fractions.
            math.floor((total.cpus - given.cpus) / limits.cpus + 1e-6),
            (total.pids - given.pids) // limits.pids,
        ),
    )


def shortage(use: MachineUse, limits: Limits) -> Shortage | None:
    """What keeps a sandbox with these limits from fitting; None if it fits."""
    total, given = use.total, use.given
    if given.memory_bytes + limits.memory_bytes > total.memory_bytes:
        return Shortage(
            "memory_bytes",
            f"sandboxes have reserved {given.memory_bytes / GIB:.1f} of {total.memory_bytes / GIB:.1f} "
            f"GiB of memory, and this one needs {limits.memory_bytes / GIB:.1f} GiB "
            "(SANDLOT_OVERCOMMIT_MEMORY)",
        )
    if given.cpus + limits.cpus > total.cpus + 1e-6:
        return Shortage(
            "cpus",
            f"sandboxes have reserved {given.cpus:g} of {total.cpus:g} cores, and this one needs "
            f"{limits.cpus:g} (SANDLOT_OVERCOMMIT_CPUS)",
        )
    if given.pids + limits.pids > total.pids:
        return Shortage(
            "pids",
            f"sandboxes have reserved {given.pids} of {total.pids} processes, and this one needs "
            f"{limits.pids} (kernel.pid_max)",
        )
    return None


def units(limits: Limits, usual: Limits) -> int:
    """How many sandboxes with the usual limits take as much room as one with these limits."""
    return math.ceil(
        max(
            limits.memory_bytes / usual.memory_bytes,
            limits.cpus / usual.cpus - 1e-6,
            limits.pids / usual.pids,
            1,
        )
    )
