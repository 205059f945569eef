"""The worker's records of artifacts, in a SQLite file of their own."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from sandlot.domain.artifacts.artifact import Artifact
from sandlot.domain.paging import place_of
from sandlot.worker.artifacts.copy_records import COPIES, CopyRecords, copy_row, deletion_row
from sandlot.worker.store.sqlite_file import Statement

FILE_NAME: Final = "artifacts.sqlite3"
# ``place``: its order in lists. ``digest``: of its content, which artifacts of one tenant share.
_ARTIFACTS: Final = """
CREATE TABLE artifacts (
    id TEXT PRIMARY KEY, tenant TEXT NOT NULL, session TEXT NOT NULL, thread TEXT, path TEXT NOT NULL,
    place TEXT NOT NULL, created_at REAL NOT NULL, size INTEGER NOT NULL, digest TEXT NOT NULL,
    artifact BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX of_tenant ON artifacts (tenant, place);
CREATE INDEX of_session ON artifacts (session, place);
CREATE INDEX of_content ON artifacts (tenant, digest);
CREATE INDEX by_age ON artifacts (created_at);
"""


@dataclass(frozen=True, slots=True)
class Kept:
    """How many artifacts somebody has, and their size together."""

    count: int = 0
    bytes: int = 0


class ArtifactRecords(CopyRecords):
    """``has_copies``: whether what is added is to be saved in object storage too."""

    # A record may not be lost: nobody would know the file, and the next start would delete it.
    synchronous = "FULL"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / FILE_NAME, (_ARTIFACTS, COPIES))
        self.has_copies = False

    async def add(self, artifact: Artifact) -> None:
        await self._write([_row(artifact), *([copy_row(artifact)] if self.has_copies else [])])

    async def take_over(self, artifacts: Sequence[Artifact], saved_at: float) -> None:
        """Add artifacts that are in object storage alone. What is known already stays as it is."""

        def work(database: sqlite3.Connection) -> None:
            for artifact in artifacts:
                # It may be known as one to delete.
                known = database.execute("SELECT 1 FROM copies WHERE id = ?", (artifact.id,)).fetchone()
                if known is None:
                    database.execute(*_row(artifact))
                    database.execute(*copy_row(artifact, saved_at))

        await self._transaction(work)

    async def find(self, tenant: str, artifact_id: str) -> Artifact | None:
        return await self._one(
            "SELECT artifact FROM artifacts WHERE id = ? AND tenant = ?", artifact_id, tenant
        )

    async def last_of(self, session_id: str, path: str) -> Artifact | None:
        """What was last kept of a session's file."""
        return await self._one(
            "SELECT artifact FROM artifacts WHERE session = ? AND path = ? ORDER BY place DESC LIMIT 1",
            *(session_id, path),
        )

    async def page(
        self, tenant: str, session_id: str | None, thread: str | None, after: str, limit: int
    ) -> Sequence[Artifact]:
        return await self._all(
            "SELECT artifact FROM artifacts WHERE tenant = ? AND (? IS NULL OR session = ?) "
            "AND (? IS NULL OR thread = ?) AND place > ? ORDER BY place LIMIT ?",
            *(tenant, session_id, session_id, thread, thread, after, limit),
        )

    async def oldest(self, tenant: str, limit: int) -> Sequence[Artifact]:
        return await self._all(
            "SELECT artifact FROM artifacts WHERE tenant = ? ORDER BY place LIMIT ?", tenant, limit
        )

    async def older_than(self, time: float, limit: int) -> Sequence[Artifact]:
        return await self._all(
            "SELECT artifact FROM artifacts WHERE created_at < ? ORDER BY created_at LIMIT ?", time, limit
        )

    async def kept_by_tenant(self, tenant: str) -> Kept:
        return await self._kept(
            "SELECT count(*), coalesce(sum(size), 0) FROM artifacts WHERE tenant = ?", tenant
        )

    async def kept_by_session(self, session_id: str) -> Kept:
        return await self._kept(
            "SELECT count(*), coalesce(sum(size), 0) FROM artifacts WHERE session = ?", session_id
        )

    async def has_content(self, tenant: str, digest: str) -> bool:
        rows = await self._reading(
            lambda: self._rows(
                "SELECT 1 FROM artifacts WHERE tenant = ? AND digest = ? LIMIT 1", (tenant, digest)
            )
        )
        return bool(rows)

    async def contents(self) -> set[tuple[str, str]]:
        """The tenant and the digest of each content that an artifact has."""
        rows = await self._reading(lambda: self._rows("SELECT DISTINCT tenant, digest FROM artifacts"))
        return {(str(tenant), str(digest)) for tenant, digest in rows}

    async def remove(self, artifact_ids: Sequence[str]) -> None:
        rows = (
            (("DELETE FROM artifacts WHERE id = ?", (name,)), deletion_row(name)) for name in artifact_ids
        )
        await self._write([row for both in rows for row in both])

    async def _all(self, statement: str, *values: object) -> Sequence[Artifact]:
        rows = await self._reading(lambda: self._rows(statement, values))
        return [msgspec.json.decode(row[0], type=Artifact) for row in rows]

    async def _one(self, statement: str, *values: object) -> Artifact | None:
        found = await self._all(statement, *values)
        return found[0] if found else None

    async def _kept(self, statement: str, whose: str) -> Kept:
        return Kept(*(await self._reading(lambda: self._rows(statement, (whose,))))[0])


def _row(artifact: Artifact) -> Statement:
    values = (
        artifact.id,
        artifact.tenant,
        artifact.session_id,
        artifact.thread,
        artifact.path,
        place_of(artifact),
        artifact.created_at,
        artifact.size,
        artifact.sha256,
        msgspec.json.encode(artifact),
    )
    return "INSERT INTO artifacts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", values
