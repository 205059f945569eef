"""The options of a worker for workspaces and snapshots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sandlot.domain.session import DEFAULT_HIBERNATION_S, OnIdle
from sandlot.domain.workspaces.snapshots import DEFAULT_MAX_AGE_S, DEFAULT_MAX_SNAPSHOTS

# How many hibernated sessions a worker keeps in its tables. Above that, idle sessions end.
DEFAULT_MAX_HIBERNATED: Final = 10_000


@dataclass(frozen=True, slots=True)
class WorkspaceOptions:
    """``quota_bytes``: how large a workspace may grow, where the store has quotas. ``max_snapshots``: how
    many unnamed snapshots one session has at most. ``max_age_s``: how long a snapshot is kept.
    ``on_idle``: what becomes of idle sessions that do not ask for something; None: they hibernate where
    the store can give a running sandbox their files, and end elsewhere. ``hibernation_s``: how long
    hibernated sessions are kept without use. ``max_hibernated``: how many there may be; above that, idle
    sessions end. ``snapshot_every_s``: how often a snapshot of each running session is taken and saved in
    object storage; None: never.
    """

    quota_bytes: int | None = None
    max_snapshots: int = DEFAULT_MAX_SNAPSHOTS
    max_age_s: float = DEFAULT_MAX_AGE_S
    on_idle: OnIdle | None = None
    hibernation_s: float = DEFAULT_HIBERNATION_S
    max_hibernated: int = DEFAULT_MAX_HIBERNATED
    snapshot_every_s: float | None = None
