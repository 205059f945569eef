"""A server's API keys, and the limits and policies of its tenants, in a SQLite file of their own."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sandlot.domain.callers import key_store
from sandlot.domain.callers.key_store import (
    CHANGES_AT_ONCE,
    KeyChanges,
    too_many_keys,
    too_many_policies,
    too_many_tenants,
)
from sandlot.domain.callers.keys import ApiKey, KeyPage, ended
from sandlot.domain.callers.limits import NO_LIMITS, CallerLimits
from sandlot.domain.errors import Conflict, SandlotError
from sandlot.domain.paging import check_page
from sandlot.wire.stored_keys import decode_key, encode_key, encode_limits, readable_limits
from sandlot.worker.store.sqlite_file import SqliteFile

FILE_NAME = "keys.sqlite3"
# ``change`` orders additions and ends. ``meta.name`` is random: a file that was replaced has another one.
_KEYS = """
CREATE TABLE keys (
    id TEXT PRIMARY KEY, tenant TEXT NOT NULL, change INTEGER NOT NULL, ends_at REAL, used_at REAL,
    key BLOB NOT NULL
) STRICT;
CREATE INDEX keys_of_tenant ON keys (tenant, id);
CREATE UNIQUE INDEX changes ON keys (change);
CREATE INDEX ends ON keys (ends_at) WHERE ends_at IS NOT NULL;
CREATE TABLE meta (
    only INTEGER PRIMARY KEY CHECK (only = 1), name TEXT NOT NULL, changes INTEGER NOT NULL
) STRICT;
INSERT INTO meta VALUES (1, lower(hex(randomblob(8))), 0);
"""
_TENANTS = """
CREATE TABLE tenants (name TEXT PRIMARY KEY, change INTEGER NOT NULL, limits BLOB NOT NULL) STRICT;
CREATE UNIQUE INDEX changes_of_tenants ON tenants (change);
"""
_POLICIES = "ALTER TABLE tenants ADD COLUMN policy TEXT;"
_CHANGES = """
SELECT change, key, used_at, NULL, NULL FROM keys WHERE change > ?1
UNION ALL SELECT change, limits, NULL, name, policy FROM tenants WHERE change > ?1
ORDER BY change LIMIT ?2
"""
_OLDEST_ENDED = "SELECT id FROM keys WHERE tenant = ? AND ends_at <= ? ORDER BY ends_at LIMIT 1"


class SqliteKeys(SqliteFile):
    """Implements ``KeyStore``."""

    # A revocation must survive a crash of the machine.
    synchronous = "FULL"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / FILE_NAME, (_KEYS, _TENANTS, _POLICIES))

    async def add(self, key: ApiKey) -> None:
        def work(database: sqlite3.Connection) -> None:
            stored = encode_key(key)
            if database.execute("SELECT key FROM keys WHERE id = ?", (key.id,)).fetchone() == (stored,):
                return
            count = database.execute("SELECT count(*) FROM keys WHERE tenant = ?", (key.tenant,)).fetchone()[
                0
            ]
            if count >= key_store.MAX_KEYS_OF_TENANT:
                oldest = database.execute(_OLDEST_ENDED, (key.tenant, key.created_at)).fetchone()
                if oldest is None:
                    raise too_many_keys(key.tenant)
                database.execute("DELETE FROM keys WHERE id = ?", oldest)
            database.execute(
                "INSERT INTO keys VALUES (?, ?, ?, ?, ?, ?)",
                (key.id, key.tenant, _next_change(database), key.expires_at, key.last_used_at, stored),
            )

        await self._transaction(work)

    async def get(self, key_id: str) -> ApiKey | None:
        keys = await self._read("SELECT key, used_at FROM keys WHERE id = ?", key_id)
        return keys[0] if keys else None

    async def page(self, tenant: str | None, *, after: str | None = None, limit: int = 100) -> KeyPage:
        check_page(limit)
        keys = await self._read(
            "SELECT key, used_at FROM keys WHERE id > ? AND (? IS NULL OR tenant = ?) ORDER BY id LIMIT ?",
            *(after or "", tenant, tenant, limit + 1),
        )
        return KeyPage(keys[:limit], keys[limit - 1].id if len(keys) > limit else None)

    async def end(self, key_id: str, at: float, *, revoked: bool, replaced_by: str = "") -> ApiKey | None:
        def work(database: sqlite3.Connection) -> ApiKey | None:
            row = database.execute("SELECT key, used_at FROM keys WHERE id = ?", (key_id,)).fetchone()
            before = None if row is None else decode_key(*row)
            if before is None:
                return None
            key = ended(before, at, revoked=revoked, replaced_by=replaced_by)
            database.execute(
                "UPDATE keys SET key = ?, ends_at = ?, change = ? WHERE id = ?",
                (encode_key(key), key.expires_at, _next_change(database), key_id),
            )
            return key

        return await self._transaction(work)

    async def record_use(self, used_at: Mapping[str, float]) -> None:
        await self._write(
            [
                ("UPDATE keys SET used_at = max(?, coalesce(used_at, 0)) WHERE id = ?", (at, key_id))
                for key_id, at in used_at.items()
            ]
        )

    async def set_limits(self, tenant: str, limits: CallerLimits) -> None:
        def work(database: sqlite3.Connection) -> None:
            # A row stays where limits were taken away, so that others learn of it.
            [count] = database.execute(
                "SELECT count(*) FROM tenants WHERE name != ? AND limits != ?",
                (tenant, encode_limits(NO_LIMITS)),
            ).fetchone()
            if limits != NO_LIMITS and count >= key_store.MAX_TENANTS_WITH_LIMITS:
                raise too_many_tenants()
            database.execute(
                "INSERT INTO tenants (name, change, limits) VALUES (?, ?, ?) ON CONFLICT (name) "
                "DO UPDATE SET change = excluded.change, limits = excluded.limits",
                (tenant, _next_change(database), encode_limits(limits)),
            )

        await self._transaction(work)

    async def set_policy(self, tenant: str, policy: str | None) -> None:
        def work(database: sqlite3.Connection) -> None:
            [count] = database.execute(
                "SELECT count(*) FROM tenants WHERE name != ? AND policy IS NOT NULL", (tenant,)
            ).fetchone()
            if policy is not None and count >= key_store.MAX_TENANTS_WITH_POLICY:
                raise too_many_policies()
            database.execute(
                "INSERT INTO tenants (name, change, limits, policy) VALUES (?, ?, ?, ?) ON CONFLICT (name) "
                "DO UPDATE SET change = excluded.change, policy = excluded.policy",
                (tenant, _next_change(database), encode_limits(NO_LIMITS), policy),
            )

        await self._transaction(work)

    async def changes(self, mark: str = "") -> KeyChanges:
        known, _, number = mark.partition(":")

        def work() -> KeyChanges:
            [(name, last)] = self._rows("SELECT name, changes FROM meta")
            since = int(number) if known == name and number.isdecimal() else -1
            everything = since < 0 or since > last
            rows = self._rows(_CHANGES, (-1 if everything else since, CHANGES_AT_ONCE))
            more = len(rows) == CHANGES_AT_ONCE
            return KeyChanges(
                _keys([row[1:3] for row in rows if row[3] is None]),
                f"{name}:{rows[-1][0] if more else last}",
                everything,
                readable_limits((row[3], row[1]) for row in rows if row[3] is not None),
                {row[3]: row[4] for row in rows if row[3] is not None},
                more,
            )

        return await self._reading(work)

    async def forget_ended(self, before: float) -> int:
        def work(database: sqlite3.Connection) -> int:
            return database.execute("DELETE FROM keys WHERE ends_at < ?", (before,)).rowcount

        return await self._transaction(work)

    async def _read(self, statement: str, *values: object) -> list[ApiKey]:
        return await self._reading(lambda: _keys(self._rows(statement, values)))

    def _duplicate(self, error: sqlite3.IntegrityError) -> SandlotError:
        return Conflict("There is a key with this id already.")


def _next_change(database: sqlite3.Connection) -> int:
    database.execute("UPDATE meta SET changes = changes + 1")
    change: int = database.execute("SELECT changes FROM meta").fetchone()[0]
    return change


def _keys(rows: list[tuple[Any, ...]]) -> list[ApiKey]:
    keys = (decode_key(row[0], row[1]) for row in rows)
    return [key for key in keys if key is not None]
