"""When a disk is too full for new sandboxes.

Existing sandboxes go on with the space that is left.
"""

from __future__ import annotations

from dataclasses import dataclass

from sandlot.domain.capacity.limits import MIB

# By default new sessions need this much free space, or this fraction of a smaller disk.
MIN_FREE_BYTES = 1024 * MIB
MIN_FREE_FRACTION = 0.05


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """``disk`` describes the disk in words, for messages."""

    disk: str
    free_bytes: int
    total_bytes: int


def disk_problem(space: DiskSpace, min_free_bytes: int | None) -> str | None:
    """Why no new sandboxes should be made on this disk; None if it has room."""
    needed = min_free_bytes
    if needed is None:
        needed = min(MIN_FREE_BYTES, int(space.total_bytes * MIN_FREE_FRACTION))
    if space.free_bytes >= needed:
        return None
    return (
        f"{space.disk} has {space.free_bytes // MIB} MiB free, less than the minimum of "
        f"{needed // MIB} MiB (SANDLOT_MIN_FREE_BYTES)"
    )
