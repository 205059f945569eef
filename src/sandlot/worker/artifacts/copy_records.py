"""The worker's records of copies: which artifacts to save in object storage, and which to delete there.

They are the queue. So a worker that dies finds its unfinished copies again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from sandlot.domain.artifacts.artifact import Artifact
from sandlot.worker.store.sqlite_file import SqliteFile, Statement

# An artifact without a row has no copy. ``saved_at`` is NULL until it is saved. The row outlives its
# artifact: with ``deleting`` set, the copy is deleted, and then the row. ``searched``: the tags of workers
# whose artifacts were looked for in object storage and taken over.
COPIES: Final = """
CREATE TABLE copies (
    id TEXT PRIMARY KEY, created_at REAL NOT NULL, artifact BLOB NOT NULL, saved_at REAL,
    deleting INTEGER NOT NULL
) STRICT;
CREATE INDEX copies_to_do ON copies (created_at) WHERE saved_at IS NULL OR deleting = 1;
CREATE TABLE searched (tag TEXT PRIMARY KEY) STRICT;
"""
_WANT_ALL: Final = """
INSERT OR IGNORE INTO copies SELECT id, created_at, artifact, NULL, 0 FROM artifacts
WHERE id NOT IN (SELECT id FROM copies)
"""


@dataclass(frozen=True, slots=True)
class Copy:
    """``deleting``: whether the copy is to be deleted."""

    artifact: Artifact
    saved_at: float | None
    deleting: bool

    @property
    def key(self) -> str:
        return self.artifact.id

    @property
    def lane(self) -> str:
        return self.artifact.id


class CopyRecords(SqliteFile):
    async def copies_to_do(self, limit: int) -> Sequence[Copy]:
        """What is to be saved or deleted, oldest first."""
        return await self._copies("WHERE saved_at IS NULL OR deleting = 1 ORDER BY created_at LIMIT ?", limit)

    async def copy_of(self, artifact_id: str) -> Copy | None:
        found = await self._copies("WHERE id = ?", artifact_id)
        return found[0] if found else None

    async def want_copies(self) -> None:
        """Save every artifact that has no copy: object storage may be new here."""
        await self._write([(_WANT_ALL, ())])

    async def set_saved(self, artifact_id: str, time: float) -> None:
        await self._write([("UPDATE copies SET saved_at = ? WHERE id = ?", (time, artifact_id))])

    async def forget_copy(self, artifact_id: str) -> None:
        await self._write([("DELETE FROM copies WHERE id = ?", (artifact_id,))])

    async def was_searched(self, tag: str) -> bool:
        rows = await self._reading(lambda: self._rows("SELECT 1 FROM searched WHERE tag = ?", (tag,)))
        return bool(rows)

    async def set_searched(self, tag: str) -> None:
        await self._write([("INSERT OR IGNORE INTO searched VALUES (?)", (tag,))])

    async def _copies(self, condition: str, *values: object) -> Sequence[Copy]:
        statement = f"SELECT artifact, saved_at, deleting FROM copies {condition}"  # noqa: S608  # no input
        rows = await self._reading(lambda: self._rows(statement, values))
        return [
            Copy(msgspec.json.decode(artifact, type=Artifact), saved_at, bool(deleting))
            for artifact, saved_at, deleting in rows
        ]


def copy_row(artifact: Artifact, saved_at: float | None = None) -> Statement:
    values = (artifact.id, artifact.created_at, msgspec.json.encode(artifact), saved_at)
    return "INSERT OR IGNORE INTO copies VALUES (?, ?, ?, ?, 0)", values


def deletion_row(artifact_id: str) -> Statement:
    return "UPDATE copies SET deleting = 1 WHERE id = ?", (artifact_id,)
