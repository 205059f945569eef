"""What one sandbox may use. The names carry the units; the project promises the defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Final

from sandlot.domain.errors import InvalidRequest

MIB = 1024 * 1024

# The lowest and the highest value of each limit, whatever a server allows.
LIMIT_RANGES: Final[Mapping[str, tuple[float, float]]] = {
    "memory_bytes": (32 * MIB, 1024 * 1024 * MIB),
    "cpus": (0.05, 1024.0),
    "pids": (32, 65_536),
    "tmp_bytes": (MIB, 64 * 1024 * MIB),
    "shm_bytes": (MIB, 64 * 1024 * MIB),
    "open_files": (64, 1_048_576),
}


@dataclass(frozen=True, slots=True)
class Limits:
    """What one sandbox may use.

    memory_bytes: memory, in bytes.
    cpus: processor cores; may be a fraction.
    pids: processes and threads.
    tmp_bytes: size of ``/tmp``, in bytes.
    shm_bytes: size of ``/dev/shm``, in bytes.
    open_files: open files of one process.
    """

    memory_bytes: int = 512 * MIB
    cpus: float = 0.5
    pids: int = 256
    tmp_bytes: int = 64 * MIB
    shm_bytes: int = 32 * MIB
    open_files: int = 1024

    def __post_init__(self) -> None:
        for name, (low, high) in LIMIT_RANGES.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise InvalidRequest(f"Limit {name}={value} is out of range. Use {low} to {high}.")


@dataclass(frozen=True, slots=True)
class LimitChange:
    """What a session asks for instead of its environment's limits; ``None`` leaves one as it is.

    memory_bytes: memory, in bytes.
    cpus: processor cores; may be a fraction.
    pids: processes and threads.
    tmp_bytes: size of ``/tmp``, in bytes.
    shm_bytes: size of ``/dev/shm``, in bytes.
    open_files: open files of one process.
    """

    memory_bytes: int | None = None
    cpus: float | None = None
    pids: int | None = None
    tmp_bytes: int | None = None
    shm_bytes: int | None = None
    open_files: int | None = None

    def apply(self, limits: Limits) -> Limits:
        return replace(limits, **{name: value for name, value in asdict(self).items() if value is not None})


# The most that a session may ask for, unless the settings or its environment say otherwise.
DEFAULT_CEILINGS = Limits(
    memory_bytes=4096 * MIB,
    cpus=4.0,
    pids=4096,
    tmp_bytes=1024 * MIB,
    shm_bytes=1024 * MIB,
    open_files=65_536,
)


def grant_limits(asked: LimitChange, limits: Limits, ceilings: Limits, environment: str) -> Limits:
    """An environment's limits with a session's changes applied; ``InvalidRequest`` above a ceiling.

    An environment's own limits may exceed the ceilings: its author chose them.
    """
    wanted = asked.apply(limits)
    for name, value in asdict(asked).items():
        maximum = max(getattr(ceilings, name), getattr(limits, name))
        if value is not None and value > maximum:
            raise InvalidRequest(
                f"{name}={value} exceeds the maximum of {maximum} for environment {environment}. Ask for "
                f"less, or raise SANDLOT_MAX_{name.upper()} on the server or max_limits in the "
                "environment's file.",
                details={"limit": name, "at_most": maximum},
            )
    return wanted
