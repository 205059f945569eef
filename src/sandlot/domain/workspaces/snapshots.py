"""Snapshots: a workspace at one moment. They never change, and outlive their session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from sandlot.domain.errors import InvalidRequest, NotFound
from sandlot.domain.session import Session
from sandlot.domain.text.variables import check_strings
from sandlot.domain.workspaces.workspace import WorkspaceStatus, check_snapshot_id

MAX_NAME_CHARS: Final = 200
MAX_LABELS: Final = 32
MAX_LABEL_BYTES: Final = 4096
MAX_STEP_CHARS: Final = 200
# Marks the snapshot of the files that a session began its first step with.
BASE_LABEL: Final = "sandlot.base"
# Marks a snapshot that the server took by itself, to save it in object storage; the value says why.
AUTOMATIC_LABEL: Final = "sandlot.automatic"
# How many paths of each kind a comparison names.
MAX_DIFFERENCES: Final = 10_000
# How many snapshots a server keeps for one session, and for how long, unless its settings say otherwise.
DEFAULT_MAX_SNAPSHOTS: Final = 1000
DEFAULT_MAX_AGE_S: Final = 30 * 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A workspace at one moment.

    id: its id.
    session_id: the session whose workspace it is of.
    created_at: when it was taken, in seconds since the epoch.
    environment: the environment of that session.
    tenant: whom it belongs to.
    thread: the conversation of that session, if any.
    name: the caller's name for it; may be empty, and need not be unique.
    labels: the caller's own names and values.
    parent: the snapshot before it in the same line of files, if any.
    unique_bytes: how much space it alone needs: what deleting it frees. ``None`` if the store cannot tell.
    """

    id: str
    session_id: str
    created_at: float
    environment: str
    tenant: str
    thread: str | None = None
    name: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    parent: str | None = None
    unique_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """A request for a snapshot.

    ``name`` and ``labels``: the caller's own. ``step``: ends the step of this name, which
    ``RestoreSnapshot`` began. A snapshot is then only taken if files have changed since the last one;
    otherwise the answer is the last one. Snapshots without a step do not count here: they are the caller's
    own and move no line of steps.
    """

    name: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    step: str = ""

    def __post_init__(self) -> None:
        if len(self.name) > MAX_NAME_CHARS or not (self.name.isprintable()):
            raise InvalidRequest(
                f"A snapshot's name must have at most {MAX_NAME_CHARS} printable characters."
            )
        check_strings("label", self.labels)
        for label in (BASE_LABEL, AUTOMATIC_LABEL):
            if label in self.labels:
                raise InvalidRequest(f"The label {label!r} is the server's own. Choose another name.")
        try:
            size = sum(len(text.encode()) for pair in self.labels.items() for text in pair)
        except UnicodeEncodeError as error:
            raise InvalidRequest("A label is not valid Unicode text.") from error
        if len(self.labels) > MAX_LABELS or size > MAX_LABEL_BYTES:
            raise InvalidRequest(f"labels must not exceed {MAX_LABELS} entries and {MAX_LABEL_BYTES} bytes.")
        check_step(self.step)


@dataclass(frozen=True, slots=True)
class RestoreSnapshot:
    """A request to give a session the files of a snapshot.

    ``snapshot``: which one. ``None`` is only for a step: the files that the session began with.
    ``step``: the caller's name for what it is about to do. Then nothing is restored if the files are those
    of ``snapshot`` and what was done to them since belongs to no other step. So a caller that goes on from
    where it was keeps its sandbox, and one that goes back, or repeats a step that another caller broke off,
    gets the files as they were.
    """

    snapshot: str | None = None
    step: str = ""

    def __post_init__(self) -> None:
        if self.snapshot is not None:
            check_snapshot_id(self.snapshot)
        elif not self.step:
            raise InvalidRequest("Name the snapshot to restore.")
        check_step(self.step)


@dataclass(frozen=True, slots=True)
class Restored:
    """A session after a restore.

    session: the session.
    replaced: whether it got a new sandbox. If not, its files were already those of the snapshot.
    snapshot: the snapshot whose files it has.
    lost: what was lost with the old sandbox.
    kept: what the session kept.
    """

    session: Session
    replaced: bool
    snapshot: str
    lost: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SnapshotPage:
    """One page of snapshots.

    snapshots: the snapshots, oldest first.
    next: pass it as ``after`` for the following page; ``None`` at the end.
    missing: in a fleet, the workers that did not answer. Their snapshots are not in the page.
    """

    snapshots: tuple[Snapshot, ...]
    next: str | None = None
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Difference:
    """How files differ from those of a snapshot. Paths are relative to the workspace, and sorted.

    added: what is new.
    changed: what has another content, mode, owner or type.
    removed: what is gone.
    truncated: whether there are more than are named.
    """

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    truncated: bool = False


class SnapshotService(Protocol):
    """The part of ``SandboxService`` about workspaces. ``Unsupported`` where the store has no snapshots."""

    async def get_workspace(self, session_id: str) -> WorkspaceStatus: ...

    async def hibernate_session(self, session_id: str) -> Session:
        """End every process of the session and remove its sandbox, but keep its files.

        The session's next use gives it a new sandbox with them: its generation grows. Needs no snapshots.
        """
        ...

    async def take_snapshot(self, session_id: str, request: TakeSnapshot) -> Snapshot:
        """Keep the session's files as they are now. Commands that have ended are in it completely."""
        ...

    async def list_snapshots(
        self, *, session_id: str | None = None, after: str | None = None, limit: int = 100
    ) -> SnapshotPage:
        """List the tenant's snapshots, or those of one session, oldest first."""
        ...

    async def delete_snapshot(self, snapshot_id: str) -> None:
        """Delete a snapshot. Sessions that began from it keep their files. Idempotent."""
        ...

    async def compare_snapshot(self, snapshot_id: str, *, to: str | None = None) -> Difference:
        """How a later snapshot, or by default the files of its session now, differ from a snapshot."""
        ...

    async def restore_snapshot(self, session_id: str, request: RestoreSnapshot) -> Restored:
        """Give the session the files of a snapshot, and a new sandbox: its generation grows.

        Every process of the session ends first. The snapshot may be of another session of the tenant.
        """
        ...


def check_step(step: str) -> None:
    if len(step) > MAX_STEP_CHARS or not step.isprintable():
        raise InvalidRequest(f"A step's name must have at most {MAX_STEP_CHARS} printable characters.")


def no_snapshot_error(snapshot_id: str) -> NotFound:
    """The error for an unknown snapshot. ``snapshot_id`` is unchecked text from the caller."""
    return NotFound(
        f"Snapshot {snapshot_id[:64]!r} does not exist. It may have been deleted, or was too old."
    )


def surplus(snapshots: Sequence[Snapshot], *, max_count: int, max_age_s: float, now: float) -> list[Snapshot]:
    """Which snapshots of one session to delete: those that are too old, and the oldest above the count.

    ``snapshots``: oldest first. Named snapshots and the one that the first step began with do not count, and
    stay until their age is over.
    """
    old = [snapshot for snapshot in snapshots if now - snapshot.created_at > max_age_s]
    young = [
        snapshot
        for snapshot in snapshots
        if now - snapshot.created_at <= max_age_s and not snapshot.name and BASE_LABEL not in snapshot.labels
    ]
    return old + young[: max(0, len(young) - max_count)]
