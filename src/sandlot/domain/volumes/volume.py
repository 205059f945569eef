"""Volumes: named files of a tenant. Sessions come and go; a volume stays until somebody deletes it.

One session at a time writes to a volume. Any number of others read a copy of its files, as they were when
their sandbox got it. Both see it at ``/volumes/<name>``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from sandlot.domain.errors import Busy, Conflict, InvalidRequest, NotFound
from sandlot.domain.ids import is_name

# How many volumes one session can have.
MAX_PER_SESSION: Final = 16
MIN_QUOTA_BYTES: Final = 16 * 1024**2
MAX_QUOTA_BYTES: Final = 1024**5
# Unless the settings say otherwise: how large a volume may grow, and how many a tenant has, of which size
# together.
DEFAULT_QUOTA_BYTES: Final = 10 * 1024**3
DEFAULT_MAX_COUNT: Final = 100
DEFAULT_MAX_TENANT_BYTES: Final = 100 * 1024**3


class VolumeMode(StrEnum):
    """What a session may do with a volume.

    rw: it reads and writes. One session at a time may.
    ro: it reads a copy of the files, as they were when its sandbox got it.
    """

    RW = "rw"
    RO = "ro"


@dataclass(frozen=True, slots=True)
class Volume:
    """A volume.

    id: its id.
    name: its name, which no other volume of the tenant has.
    tenant: whom it belongs to.
    quota_bytes: how large it may grow.
    created_at: when it was created, in seconds since the epoch.
    used_bytes: how much of its quota it uses; ``None`` if the store cannot tell now.
    writer: the id of the session that writes to it now, if any.
    """

    id: str
    name: str
    tenant: str
    quota_bytes: int
    created_at: float
    used_bytes: int | None = None
    writer: str | None = None


@dataclass(frozen=True, slots=True)
class CreateVolume:
    """A request for a volume. ``quota_bytes``: ``None`` for what the server is set up for."""

    name: str
    quota_bytes: int | None = None

    def __post_init__(self) -> None:
        # A name that looks like an id would hide the volume that has this id.
        if not is_name(self.name) or self.name.startswith("vol_"):
            raise InvalidRequest(
                f"{self.name!r:.80} is not a valid name for a volume. Use 1-63 lowercase letters, digits and "
                ". _ -, starting with a letter or digit, and not with vol_."
            )
        if self.quota_bytes is not None and not MIN_QUOTA_BYTES <= self.quota_bytes <= MAX_QUOTA_BYTES:
            raise InvalidRequest("A volume's size must be between 16 MiB and 1 PiB.")


@dataclass(frozen=True, slots=True)
class VolumeUse:
    """A session's wish for a volume. ``volume``: its name or id."""

    volume: str
    mode: VolumeMode


@dataclass(frozen=True, slots=True)
class SessionVolume:
    """A volume of a session.

    id: the volume's id.
    name: its name; the session sees it at ``/volumes/<name>``.
    mode: whether the session writes to it.
    """

    id: str
    name: str
    mode: VolumeMode

    @property
    def report_text(self) -> str:
        """How reports of losses name it."""
        return f"volume {self.name}"


@dataclass(frozen=True, slots=True)
class VolumePage:
    """One page of volumes.

    volumes: the volumes, oldest first.
    next: pass it as ``after`` for the following page; ``None`` at the end.
    missing: in a fleet, the workers that did not answer. Their volumes are not in the page.
    """

    volumes: tuple[Volume, ...]
    next: str | None = None
    missing: tuple[str, ...] = ()


class VolumeService(Protocol):
    """The part of ``SandboxService`` about volumes. ``Unsupported`` where the store keeps none.

    ``volume`` is a volume's name or id.
    """

    async def create_volume(self, request: CreateVolume) -> Volume:
        """Make an empty volume. ``Conflict`` if the tenant has one of this name."""
        ...

    async def get_volume(self, volume: str) -> Volume: ...

    async def list_volumes(self, *, after: str | None = None, limit: int = 100) -> VolumePage:
        """List the tenant's volumes, oldest first."""
        ...

    async def delete_volume(self, volume: str) -> None:
        """Delete a volume with its files. ``Conflict`` while a session has it. Idempotent."""
        ...


def check_uses(uses: Sequence[VolumeUse]) -> None:
    """Raise ``InvalidRequest`` if a session cannot ask for these volumes."""
    if len(uses) > MAX_PER_SESSION:
        raise InvalidRequest(f"A session can have at most {MAX_PER_SESSION} volumes, not {len(uses)}.")
    for use in uses:
        if not is_name(use.volume):
            raise InvalidRequest(f"{use.volume!r:.80} is neither a volume's name nor its id.")
    if len({use.volume for use in uses}) < len(uses):
        raise InvalidRequest("A session can have each volume only once.")


def parse_mode(mode: object) -> VolumeMode:
    if mode not in VolumeMode.__members__.values():
        raise InvalidRequest(
            f"A volume's mode is 'rw' (one session at a time) or 'ro' (a copy to read), not {mode!r:.80}."
        )
    return VolumeMode(str(mode))


def is_among(use: VolumeUse, volumes: Sequence[SessionVolume]) -> bool:
    """Whether a session that has these volumes has what is asked for."""
    return any(use.volume in (known.id, known.name) and use.mode is known.mode for known in volumes)


def no_volume_error(volume: str) -> NotFound:
    """The error for an unknown volume. ``volume`` is unchecked text from the caller."""
    return NotFound(f"Volume {volume[:64]!r} does not exist. List your volumes to see their names.")


def written_by(volume: SessionVolume, session_id: str) -> Conflict:
    """The error for a second session that wants to write."""
    return Conflict(
        f"Session {session_id} writes to volume {volume.name}, and only one session at a time can. Delete "
        "that session or let it hibernate, or ask for the volume with the mode 'ro'.",
        details={"session_id": session_id, "volume": volume.name},
    )


def still_used(volume: Volume, session_ids: Sequence[str]) -> Conflict:
    """The error for a delete of a volume that sessions have."""
    more = f" and {len(session_ids) - 3} more" if len(session_ids) > 3 else ""
    return Conflict(
        f"Volume {volume.name} belongs to session {', '.join(session_ids[:3])}{more}. Delete the session "
        "first: it would lose its files, even if it hibernates now.",
        details={"session_ids": list(session_ids[:100]), "volume": volume.name},
    )


def taken_name(name: str) -> Conflict:
    return Conflict(f"You already have a volume {name}. Use it, or choose another name.")


def check_room(count: int, bytes_so_far: int, wanted: int, max_count: int, max_bytes: int) -> None:
    """Raise ``Busy`` if a tenant with so many volumes cannot have another one of this size."""
    problem: str | None = None
    if count >= max_count:
        problem = f"have {count} volumes, and this server keeps at most {max_count} for one tenant"
    elif bytes_so_far + wanted > max_bytes:
        problem = (
            f"have volumes of {bytes_so_far} bytes together, and with {wanted} more they would exceed the "
            f"{max_bytes} bytes that this server keeps for one tenant"
        )
    if problem is not None:
        raise Busy(
            f"You {problem}. Delete a volume, or ask for a smaller one.",
            retryable=False,
            details={"reason": "quota"},
        )
