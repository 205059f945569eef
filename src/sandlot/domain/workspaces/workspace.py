"""A workspace: a session's files, which outlive its sandboxes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sandlot.domain.errors import InvalidRequest
from sandlot.domain.ids import is_snapshot_id


class StoreKind(StrEnum):
    """How a server stores workspaces.

    btrfs: as subvolumes, with quotas and snapshots.
    volume: as Docker volumes, without quotas; a snapshot is a full copy.
    memory: in the fake's memory.
    none: not at all; files end with their sandbox.
    """

    BTRFS = "btrfs"
    VOLUME = "volume"
    MEMORY = "memory"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class StoreAbilities:
    """What the store of a server can do.

    kind: how it stores workspaces.
    quotas: whether it limits the size of a workspace.
    snapshots: whether it can take snapshots, and give a session the files of one.
    swaps: whether a running sandbox can get another workspace. Otherwise a sandbox is made for it.
    note: what it cannot do, why, and what the operator can do about it; empty if it can do everything.
    volumes: whether it can keep volumes, which sessions share.
    """

    kind: StoreKind
    quotas: bool = False
    snapshots: bool = False
    swaps: bool = False
    note: str = ""
    volumes: bool = False


@dataclass(frozen=True, slots=True)
class Workspace:
    """A session's files in ``/workspace``. They outlive its sandboxes.

    id: its id.
    quota_bytes: how large it may grow; ``None``: without limit.
    snapshot: the snapshot that it began from; ``None`` if it began with the environment's own files.
    """

    id: str
    quota_bytes: int | None = None
    snapshot: str | None = None


@dataclass(frozen=True, slots=True)
class WorkspaceStatus:
    """A session's workspace, and how much it uses.

    workspace: the workspace.
    store: how the server stores it.
    used_bytes: how much of its quota it uses; ``None`` if the store cannot tell.
    snapshots: how many snapshots of the session there are.
    note: what the store cannot do, and why; empty if it can do everything.
    """

    workspace: Workspace
    store: StoreKind
    used_bytes: int | None = None
    snapshots: int = 0
    note: str = ""


def check_snapshot_id(text: str) -> str:
    if not is_snapshot_id(text):
        raise InvalidRequest(f"{text!r:.80} is not a snapshot's id. It looks like snp_1a2b….")
    return text
