"""The options of a worker for object storage."""

from __future__ import annotations

from dataclasses import dataclass, field

from sandlot.domain.workspaces.objects.garbage import DEFAULT_GRACE_S
from sandlot.domain.workspaces.objects.locations import Location


@dataclass(frozen=True, slots=True)
class ObjectOptions:
    """``location``: where. ``endpoint`` and ``region``: of S3; ``None``: those of AWS. ``access_key_id`` and
    ``secret_access_key``: ``None``: as the environment or the machine's role says. ``key``: encrypts what is
    saved; ``None``: it is only checksummed. ``transfers``: how many objects are sent or fetched at the same
    time. ``jobs``: how many snapshots. ``grace_s``: how long a chunk that nobody needs is kept; a save may
    take half of it.
    """

    location: Location
    endpoint: str | None = None
    region: str | None = None
    access_key_id: str | None = None
    secret_access_key: str | None = field(default=None, repr=False)
    key: bytes | None = field(default=None, repr=False)
    transfers: int = 4
    jobs: int = 2
    grace_s: float = DEFAULT_GRACE_S
