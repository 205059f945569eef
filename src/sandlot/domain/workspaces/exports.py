"""Exports: snapshots that are saved in object storage too, and which is a session's newest. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from sandlot.domain.session import KEPT_FILES, EndReason, LossReport, OnIdle, Session
from sandlot.domain.session_states import expiry_reason
from sandlot.domain.workspaces.snapshots import AUTOMATIC_LABEL, Snapshot

_CHANGES: Final = "changes in /workspace since"
_MARK: Final = re.compile(r"(\d{8})-(\d{13}\.\d{6})-(snp_[0-9a-f]{32})")


class Cause(StrEnum):
    """Why a snapshot is exported.

    named: the caller named it.
    interval: it is taken regularly while the session runs.
    hibernation: the session hibernates.
    taken_over: its files came here from another worker's export.
    """

    NAMED = "named"
    INTERVAL = "interval"
    HIBERNATION = "hibernation"
    TAKEN_OVER = "taken over"

    @property
    def automatic(self) -> bool:
        """Whether the worker took it by itself. Only the newest of these stays."""
        return self is not Cause.NAMED

    @property
    def labels(self) -> dict[str, str]:
        return {AUTOMATIC_LABEL: self.value} if self.automatic else {}


@dataclass(frozen=True, slots=True)
class ExportMeta:
    """What is saved with an export. ``generation``: the session's when the snapshot was taken."""

    snapshot: Snapshot
    generation: int
    cause: Cause


@dataclass(frozen=True, slots=True, order=True)
class Mark:
    """Says beside the exports of a tenant that a session has one. The greatest is the newest.

    The generation comes first: a worker that a session was taken from may still save what it has.
    """

    generation: int
    created_at: float
    snapshot: str

    @property
    def name(self) -> str:
        return f"{self.generation:08d}-{self.created_at:020.6f}-{self.snapshot}"


def marks_in(names: Iterable[str]) -> list[Mark]:
    """Newest first. What is no mark is left out."""
    matches = [match for name in names if (match := _MARK.fullmatch(name)) is not None]
    return sorted((Mark(int(one[1]), float(one[2]), one[3]) for one in matches), reverse=True)


def outlives(lost: Session, newest: ExportMeta | None, now: float) -> bool:
    """Whether a session whose worker is gone has not ended: its lifetime goes on, or it hibernated."""
    if expiry_reason(lost, now) is not EndReason.LIFETIME:
        return True
    if newest is None:
        return False
    hibernated = newest.cause is Cause.HIBERNATION and newest.generation == lost.generation
    return hibernated or lost.on_idle is OnIdle.HIBERNATE


def with_exported_files(report: LossReport, as_of: float) -> LossReport:
    """The report of a loss after which the session got files back from an export of an earlier time."""
    when = datetime.fromtimestamp(as_of, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    lost = tuple(thing for thing in report.lost if thing != KEPT_FILES and not thing.startswith(_CHANGES))
    kept = tuple(thing for thing in report.kept if not thing.startswith(KEPT_FILES))
    return replace(
        report,
        lost=(*lost, f"{_CHANGES} {when}"),
        kept=(f"{KEPT_FILES} as of {when}", *kept),
    )
