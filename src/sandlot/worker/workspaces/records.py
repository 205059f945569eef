"""The worker's records of snapshots, in a SQLite file of their own."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec

from sandlot.domain.paging import place_of
from sandlot.domain.workspaces.lines import Line
from sandlot.domain.workspaces.snapshots import BASE_LABEL, Snapshot
from sandlot.worker.store.sqlite_file import Statement
from sandlot.worker.workspaces.export_records import (
    EXPORTS,
    Export,
    ExportRecords,
    deletion_rows,
    export_row,
)

FILE_NAME: Final = "snapshots.sqlite3"
# ``named``: whether the caller named it; such a snapshot is not deleted because there are many. ``place``:
# its order in lists. A line is where the files of one workspace stand: the last snapshot that a step took or
# that was restored, and the step that is open.
_SNAPSHOTS: Final = """
CREATE TABLE snapshots (
    id TEXT PRIMARY KEY, tenant TEXT NOT NULL, session TEXT NOT NULL, place TEXT NOT NULL,
    created_at REAL NOT NULL, named INTEGER NOT NULL, base INTEGER NOT NULL, snapshot BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX of_tenant ON snapshots (tenant, place);
CREATE INDEX of_session ON snapshots (session, place);
CREATE INDEX by_age ON snapshots (created_at);
CREATE TABLE lines (
    workspace TEXT PRIMARY KEY, head TEXT, step TEXT NOT NULL, began TEXT, open INTEGER NOT NULL
) STRICT;
"""
# What set-up scripts left. Each environment has one result: ``setup`` is the digest of the script, ``image``
# what it ran in.
_SEEDS: Final = """
CREATE TABLE seeds (
    environment TEXT PRIMARY KEY, setup TEXT NOT NULL, image TEXT NOT NULL, snapshot TEXT NOT NULL
) STRICT;
"""


@dataclass(frozen=True, slots=True)
class SeedRecord:
    """A snapshot of what the set-up script of an environment left."""

    environment: str
    setup: str
    image: str
    snapshot: str


# Automatic snapshots are replaced by newer ones, and by nothing else while their sessions live.
_NOT_AUTOMATIC: Final = "id NOT IN (SELECT snapshot FROM exports WHERE automatic = ?)"


class SnapshotRecords(ExportRecords):
    """``pinned``: the ids of snapshots that retention leaves alone. ``exports``: whether it leaves automatic
    ones alone.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / FILE_NAME, (_SNAPSHOTS, _SEEDS, EXPORTS))
        self.pinned: Callable[[], Collection[str]] = tuple
        self.exports = False

    async def add(
        self,
        snapshot: Snapshot,
        workspace_id: str,
        line: Line | None = None,
        export: Export | None = None,
    ) -> None:
        """``export``: to be saved in object storage, too."""
        statements: list[Statement] = [
            (
                "INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    snapshot.id,
                    snapshot.tenant,
                    snapshot.session_id,
                    place_of(snapshot),
                    snapshot.created_at,
                    int(bool(snapshot.name)),
                    int(BASE_LABEL in snapshot.labels),
                    msgspec.json.encode(replace(snapshot, unique_bytes=None)),
                ),
            )
        ]
        if line is not None:
            statements.append(_line_row(workspace_id, line))
        if export is not None:
            statements.append(export_row(export))
        await self._write(statements)

    async def find(self, tenant: str, snapshot_id: str) -> Snapshot | None:
        return await self._one(
            "SELECT snapshot FROM snapshots WHERE id = ? AND tenant = ?", snapshot_id, tenant
        )

    async def base_of(self, session_id: str) -> Snapshot | None:
        return await self._one(
            "SELECT snapshot FROM snapshots WHERE session = ? AND base = 1 ORDER BY place LIMIT 1", session_id
        )

    async def page(
        self, tenant: str, session_id: str | None, after: str | None, limit: int
    ) -> Sequence[Snapshot]:
        return await self._all(
            "SELECT snapshot FROM snapshots WHERE tenant = ? AND (? IS NULL OR session = ?) AND place > ? "
            "ORDER BY place LIMIT ?",
            *(tenant, session_id, session_id, after or "", limit),
        )

    async def count(self, session_id: str) -> int:
        return int(await self._number("SELECT count(*) FROM snapshots WHERE session = ?", session_id))

    async def count_named(self, session_id: str) -> int:
        counted = "SELECT count(*) FROM snapshots WHERE session = ? AND named = 1"
        return int(await self._number(counted, session_id))

    async def above_count(self, session_id: str, max_count: int) -> Sequence[Snapshot]:
        """The session's oldest unnamed snapshots, if it has more than ``max_count``."""
        unnamed = f"FROM snapshots WHERE session = ? AND named = 0 AND base = 0 AND {_NOT_AUTOMATIC}"
        counted = await self._number(f"SELECT count(*) {unnamed}", session_id, self._automatic)
        surplus = counted - max_count
        if surplus <= 0:
            return ()
        oldest = await self._all(
            f"SELECT snapshot {unnamed} ORDER BY place LIMIT ?", session_id, self._automatic, surplus
        )
        return [snapshot for snapshot in oldest if snapshot.id not in self.pinned()]

    async def older_than(self, time: float, limit: int) -> Sequence[Snapshot]:
        return await self._all(
            f"SELECT snapshot FROM snapshots WHERE created_at < ? AND {_NOT_AUTOMATIC} "  # noqa: S608
            "AND id NOT IN (SELECT value FROM json_each(?)) ORDER BY created_at LIMIT ?",
            *(time, self._automatic, json.dumps(list(self.pinned())), limit),
        )

    async def ids(self) -> set[str]:
        """All snapshots that somebody needs: those of sessions, and what set-up scripts left."""
        statement = "SELECT id FROM snapshots UNION SELECT snapshot FROM seeds"
        return set(await self._reading(lambda: [str(row[0]) for row in self._rows(statement)]))

    async def has(self, snapshot_id: str) -> bool:
        """Whether any tenant has this snapshot."""
        return bool(await self._number("SELECT count(*) FROM snapshots WHERE id = ?", snapshot_id))

    async def remove(self, snapshot_ids: Sequence[str]) -> None:
        """Their exports are deleted too, later."""
        deletions: list[Statement] = [
            ("DELETE FROM snapshots WHERE id = ?", (name,)) for name in snapshot_ids
        ]
        await self._write([*deletions, *deletion_rows(snapshot_ids)])

    async def line(self, workspace_id: str) -> Line | None:
        rows = await self._reading(
            lambda: self._rows(
                "SELECT head, step, began, open FROM lines WHERE workspace = ?", (workspace_id,)
            )
        )
        if not rows:
            return None
        head, step, began, is_open = rows[0]
        return Line(head, step, began, bool(is_open))

    async def set_line(self, workspace_id: str, line: Line) -> None:
        await self._write([_line_row(workspace_id, line)])

    async def forget_lines(self, kept: set[str]) -> None:
        """Forget the lines of workspaces that are gone."""
        rows = await self._reading(lambda: self._rows("SELECT workspace FROM lines"))
        gone = [str(row[0]) for row in rows if row[0] not in kept]
        if gone:
            await self._write([("DELETE FROM lines WHERE workspace = ?", (name,)) for name in gone])

    # --- what set-up scripts left -------------------------------------------------------------

    async def seeds(self) -> Sequence[SeedRecord]:
        rows = await self._reading(
            lambda: self._rows("SELECT environment, setup, image, snapshot FROM seeds ORDER BY environment")
        )
        return [SeedRecord(*row) for row in rows]

    async def set_seed(self, seed: SeedRecord) -> None:
        """Record a new result. The environment's earlier one is forgotten."""
        values = (seed.environment, seed.setup, seed.image, seed.snapshot)
        await self._write([("INSERT OR REPLACE INTO seeds VALUES (?, ?, ?, ?)", values)])

    async def forget_seed(self, snapshot_id: str) -> None:
        await self._write([("DELETE FROM seeds WHERE snapshot = ?", (snapshot_id,))])

    @property
    def _automatic(self) -> int:
        """What automatic snapshots are marked with; nothing is if nobody else deletes them."""
        return 1 if self.exports else -1

    async def _all(self, statement: str, *values: object) -> Sequence[Snapshot]:
        rows = await self._reading(lambda: self._rows(statement, values))
        return [msgspec.json.decode(row[0], type=Snapshot) for row in rows]

    async def _one(self, statement: str, *values: object) -> Snapshot | None:
        found = await self._all(statement, *values)
        return found[0] if found else None

    async def _number(self, statement: str, *values: object) -> int:
        return int((await self._reading(lambda: self._rows(statement, values)))[0][0])


def _line_row(workspace_id: str, line: Line) -> Statement:
    return (
        "INSERT OR REPLACE INTO lines VALUES (?, ?, ?, ?, ?)",
        (workspace_id, line.head, line.step, line.began, int(line.open)),
    )
