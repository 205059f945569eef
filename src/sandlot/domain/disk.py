"""When a disk is too full for new sandboxes. Those that are there go on with what is left."""

from __future__ import annotations

from dataclasses import dataclass

from sandlot.domain.limits import MIB

# Unless somebody says otherwise, new sessions need so much free room, or so large a part of a smaller disk.
FREE_BYTES = 1024 * MIB
FREE_PART = 0.05


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """``disk``: which one, in words."""

    disk: str
    free_bytes: int
    total_bytes: int


def disk_problem(space: DiskSpace, min_free_bytes: int | None) -> str | None:
    """Why no new sandboxes should be made there; None: there is room."""
    needed = min_free_bytes
    if needed is None:
        needed = min(FREE_BYTES, int(space.total_bytes * FREE_PART))
    if space.free_bytes >= needed:
        return None
    return (
        f"{space.disk} has {space.free_bytes // MIB} MiB left, less than {needed // MIB} MiB "
        "(SANDLOT_MIN_FREE_BYTES)"
    )
