"""The worker's records of exports: which snapshots to save in object storage, and which to delete there.

They are the queue. So a worker that dies finds its unfinished exports again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sandlot.domain.workspaces.exports import Cause
from sandlot.worker.store.sqlite_file import SqliteFile, Statement

# A snapshot without a row is not exported. ``exported_at`` is NULL until it is. The row outlives its
# snapshot: with ``deleting`` set, the export is deleted, and then the row.
EXPORTS: Final = """
CREATE TABLE exports (
    snapshot TEXT PRIMARY KEY, tenant TEXT NOT NULL, session TEXT NOT NULL, generation INTEGER NOT NULL,
    created_at REAL NOT NULL, cause TEXT NOT NULL, automatic INTEGER NOT NULL,
    exported_at REAL, deleting INTEGER NOT NULL
) STRICT;
CREATE INDEX exports_to_do ON exports (created_at) WHERE exported_at IS NULL OR deleting = 1;
CREATE INDEX exports_of_session ON exports (session, created_at);
"""
_COLUMNS: Final = "snapshot, tenant, session, generation, created_at, cause, exported_at, deleting"


@dataclass(frozen=True, slots=True)
class Export:
    """``created_at``: when the snapshot was taken. ``deleting``: whether the export is to be deleted."""

    snapshot: str
    tenant: str
    session: str
    generation: int
    created_at: float
    cause: Cause
    exported_at: float | None = None
    deleting: bool = False

    @property
    def key(self) -> str:
        return self.snapshot

    @property
    def lane(self) -> str:
        return self.session


class ExportRecords(SqliteFile):
    async def exports_to_do(self, limit: int) -> Sequence[Export]:
        """What is to be saved or deleted, oldest first."""
        return await self._exports(
            "WHERE exported_at IS NULL OR deleting = 1 ORDER BY created_at LIMIT ?", limit
        )

    async def export_of(self, snapshot_id: str) -> Export | None:
        found = await self._exports("WHERE snapshot = ?", snapshot_id)
        return found[0] if found else None

    async def last_export_of(self, session_id: str) -> Export | None:
        """The session's newest export that is saved."""
        found = await self._exports(
            "WHERE session = ? AND exported_at IS NOT NULL AND deleting = 0 ORDER BY created_at DESC LIMIT 1",
            session_id,
        )
        return found[0] if found else None

    async def automatic_exports(self) -> Sequence[Export]:
        """Of all sessions, oldest first."""
        return await self._exports("WHERE automatic = 1 AND deleting = 0 ORDER BY created_at")

    async def automatic_before(self, session_id: str, created_at: float) -> Sequence[Export]:
        """Those of a session that a newer one replaces."""
        return await self._exports(
            "WHERE session = ? AND automatic = 1 AND deleting = 0 AND created_at < ?", session_id, created_at
        )

    async def awaits_export(self, session_id: str) -> bool:
        """Whether an automatic snapshot of the session is still to be saved."""
        return bool(
            await self._exports(
                "WHERE session = ? AND automatic = 1 AND exported_at IS NULL AND deleting = 0 LIMIT 1",
                session_id,
            )
        )

    async def want_export(self, export: Export) -> None:
        await self._write([export_row(export)])

    async def set_exported(self, snapshot_id: str, time: float) -> None:
        await self._write([("UPDATE exports SET exported_at = ? WHERE snapshot = ?", (time, snapshot_id))])

    async def forget_export(self, snapshot_id: str) -> None:
        await self._write([("DELETE FROM exports WHERE snapshot = ?", (snapshot_id,))])

    async def _exports(self, condition: str, *values: object) -> Sequence[Export]:
        statement = f"SELECT {_COLUMNS} FROM exports {condition}"  # noqa: S608  # of texts in this file
        rows = await self._reading(lambda: self._rows(statement, values))
        return [
            Export(
                snapshot, tenant, session, generation, created_at, Cause(cause), exported_at, bool(deleting)
            )
            for snapshot, tenant, session, generation, created_at, cause, exported_at, deleting in rows
        ]


def export_row(export: Export) -> Statement:
    """Adds the record of an export that is not there yet."""
    return (
        "INSERT OR IGNORE INTO exports VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            export.snapshot,
            export.tenant,
            export.session,
            export.generation,
            export.created_at,
            export.cause.value,
            int(export.cause.automatic),
            export.exported_at,
            int(export.deleting),
        ),
    )


def deletion_rows(snapshot_ids: Sequence[str]) -> list[Statement]:
    """Mark the exports of snapshots as to be deleted."""
    return [("UPDATE exports SET deleting = 1 WHERE snapshot = ?", (name,)) for name in snapshot_ids]
