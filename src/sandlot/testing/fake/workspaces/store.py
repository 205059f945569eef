"""What the fake keeps of workspaces: snapshots, and where the files of each workspace come from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sandlot.domain.errors import Unsupported
from sandlot.domain.history.positions import worker_tag
from sandlot.domain.ids import first_workspace_of, new_snapshot_id, new_workspace_id
from sandlot.domain.paging import place_of
from sandlot.domain.session import DEFAULT_HIBERNATION_S, OnIdle, Session
from sandlot.domain.volumes.volume import DEFAULT_MAX_COUNT, DEFAULT_MAX_TENANT_BYTES, DEFAULT_QUOTA_BYTES
from sandlot.domain.workspaces.lines import Line
from sandlot.domain.workspaces.snapshots import (
    BASE_LABEL,
    DEFAULT_MAX_AGE_S,
    DEFAULT_MAX_SNAPSHOTS,
    Snapshot,
    TakeSnapshot,
    no_snapshot_error,
    surplus,
)
from sandlot.domain.workspaces.workspace import StoreAbilities, StoreKind, Workspace
from sandlot.testing.fake.tree import Folder
from sandlot.testing.fake.workspaces.folders import copy_of

# Two snapshots never have the same time, not even by a clock that stands still: their order is the order in
# which they were taken.
A_MOMENT_S = 1e-6


@dataclass(frozen=True, slots=True)
class FakeStore:
    """How the fake stores workspaces.

    ``snapshots``: False for a server that has none, such as one that stores workspaces as Docker volumes.
    ``quota_bytes``: how large a workspace may grow. ``max_snapshots``: how many unnamed snapshots one
    session has at most. ``max_age_s``: how long a snapshot is kept. ``on_idle``: what becomes of idle
    sessions that do not ask for something. ``hibernation_s``: how long hibernated sessions are kept.
    ``volume_quota_bytes``: how large a volume may grow that nobody gave a size. ``max_volumes`` and
    ``max_volume_bytes``: how many a tenant has at most, and of which size together. A store without
    snapshots keeps no volumes either.
    """

    snapshots: bool = True
    quota_bytes: int | None = None
    max_snapshots: int = DEFAULT_MAX_SNAPSHOTS
    max_age_s: float = DEFAULT_MAX_AGE_S
    on_idle: OnIdle = OnIdle.END
    hibernation_s: float = DEFAULT_HIBERNATION_S
    volume_quota_bytes: int = DEFAULT_QUOTA_BYTES
    max_volumes: int = DEFAULT_MAX_COUNT
    max_volume_bytes: int = DEFAULT_MAX_TENANT_BYTES

    @property
    def abilities(self) -> StoreAbilities:
        note = "" if self.snapshots else "This fake was made without them."
        return StoreAbilities(
            StoreKind.MEMORY, True, self.snapshots, self.snapshots, note, volumes=self.snapshots
        )


class FakeSnapshots:
    def __init__(self, store: FakeStore, worker_id: str, clock: Callable[[], float]) -> None:
        self.store = store
        self.lines: dict[str, Line] = {}  # by workspace
        self._tag = worker_tag(worker_id)
        self._clock = clock
        self._snapshots: dict[str, Snapshot] = {}  # oldest first
        self._files: dict[str, Folder] = {}

    def check(self) -> None:
        """Raise ``Unsupported`` if this server has no snapshots."""
        abilities = self.store.abilities
        if not abilities.snapshots:
            raise Unsupported(f"This server cannot take snapshots. {abilities.note}")

    def first_workspace(self, sandbox_id: str) -> Workspace:
        """The workspace that a sandbox is made with."""
        return Workspace(first_workspace_of(sandbox_id), self.store.quota_bytes)

    def clone(self, snapshot: Snapshot) -> tuple[Workspace, Folder]:
        workspace = Workspace(new_workspace_id(), self.store.quota_bytes, snapshot.id)
        return workspace, copy_of(self._files[snapshot.id])

    def take(
        self, session: Session, files: Folder, request: TakeSnapshot, parent: str | None, *, base: bool
    ) -> Snapshot:
        """``base``: it has the files that the session begins its first step with."""
        latest = max((snapshot.created_at for snapshot in self._snapshots.values()), default=0.0)
        snapshot = Snapshot(
            id=new_snapshot_id(self._tag),
            session_id=session.id,
            created_at=max(self._clock(), latest + A_MOMENT_S),
            environment=session.environment,
            tenant=session.tenant,
            thread=session.thread,
            name=request.name,
            labels={**request.labels, BASE_LABEL: "true"} if base else dict(request.labels),
            parent=parent,
        )
        self._snapshots[snapshot.id] = snapshot
        self._files[snapshot.id] = copy_of(files)
        return snapshot

    def thin_out(self, session_id: str) -> None:
        """Delete the snapshots of a session that are too old or too many."""
        of_session = [known for known in self._snapshots.values() if known.session_id == session_id]
        self.delete(
            surplus(
                of_session,
                max_count=self.store.max_snapshots,
                max_age_s=self.store.max_age_s,
                now=self._clock(),
            )
        )

    def find(self, tenant: str, snapshot_id: str) -> Snapshot | None:
        self._delete_old()
        found = self._snapshots.get(snapshot_id)
        return found if found is not None and found.tenant == tenant else None

    def get(self, tenant: str, snapshot_id: str) -> Snapshot:
        """``NotFound`` if the tenant has no such snapshot."""
        self.check()
        found = self.find(tenant, snapshot_id)
        if found is None:
            raise no_snapshot_error(snapshot_id)
        return found

    def files_of(self, snapshot: Snapshot) -> Folder:
        return self._files[snapshot.id]

    def base_of(self, session_id: str) -> Snapshot | None:
        bases = (known for known in self._snapshots.values() if BASE_LABEL in known.labels)
        return next((known for known in bases if known.session_id == session_id), None)

    def in_order(self, tenant: str, session_id: str | None, after: str | None) -> list[Snapshot]:
        self._delete_old()
        return [
            known
            for known in self._snapshots.values()
            if known.tenant == tenant
            and session_id in (None, known.session_id)
            and place_of(known) > (after or "")
        ]

    def forget_line(self, session: Session) -> None:
        """Forget the line of files that the session no longer has."""
        if session.workspace is not None:
            self.lines.pop(session.workspace.id, None)

    def count(self, session_id: str) -> int:
        self._delete_old()
        return sum(known.session_id == session_id for known in self._snapshots.values())

    def delete(self, snapshots: Iterable[Snapshot]) -> None:
        for snapshot in snapshots:
            del self._snapshots[snapshot.id], self._files[snapshot.id]

    def _delete_old(self) -> None:
        now = self._clock()
        self.delete(
            [known for known in self._snapshots.values() if now - known.created_at > self.store.max_age_s]
        )
