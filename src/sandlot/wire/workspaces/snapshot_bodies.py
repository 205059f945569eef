"""HTTP bodies of snapshots. ``Snapshot``, ``SnapshotPage``, ``Difference`` and ``WorkspaceStatus`` are JSON
already, and cross the wire unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from sandlot.domain.service import Access
from sandlot.domain.workspaces.snapshots import Restored, RestoreSnapshot, TakeSnapshot
from sandlot.wire.http_bodies import STRICT, SessionBody


@dataclass(frozen=True, slots=True)
class TakeSnapshotBody:
    """The snapshot to take.

    name: your name for it; snapshots with a name are not deleted because there are too many.
    labels: your own names and values.
    step: ends the step of this name, which a restore began. Then a snapshot is only taken if files have
        changed since the last one, and otherwise the answer is the last one.
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    name: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    step: str = ""

    def to_domain(self) -> TakeSnapshot:
        return TakeSnapshot(self.name, self.labels, self.step)

    @classmethod
    def of(cls, request: TakeSnapshot) -> TakeSnapshotBody:
        return cls(request.name, dict(request.labels), request.step)


@dataclass(frozen=True, slots=True)
class RestoreBody:
    """Which files the session gets.

    snapshot: the snapshot's id. Null only for a step: the files that the session began its first step with.
    step: your name for what you are about to do. Then nothing is restored if the files are those of the
        snapshot, and what was done to them since belongs to no other step.
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    snapshot: str | None = None
    step: str = ""

    def to_domain(self) -> RestoreSnapshot:
        return RestoreSnapshot(self.snapshot, self.step)

    @classmethod
    def of(cls, request: RestoreSnapshot) -> RestoreBody:
        return cls(request.snapshot, request.step)


@dataclass(frozen=True, slots=True)
class RestoredBody:
    """A session after a restore.

    session: the session.
    replaced: whether it got a new sandbox. If not, its files were already those of the snapshot.
    snapshot: the snapshot whose files it has.
    lost: what was lost with the old sandbox.
    kept: what the session kept.
    """

    session: SessionBody
    replaced: bool
    snapshot: str
    lost: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, restored: Restored, access: Access | None = None) -> RestoredBody:
        return cls(
            SessionBody.of(restored.session, access),
            restored.replaced,
            restored.snapshot,
            list(restored.lost),
            list(restored.kept),
        )

    def to_domain(self) -> Restored:
        return Restored(
            self.session.to_domain(), self.replaced, self.snapshot, tuple(self.lost), tuple(self.kept)
        )
