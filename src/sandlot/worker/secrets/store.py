"""Secrets in a SQLite file of their own, in the worker's data folder.

``sandlot secrets`` writes the file on the worker's machine, and the worker follows it. No value crosses a
network, and no API key can change where a secret goes.

Only the owner of the file can read it, and deleted values are overwritten. The values are not encrypted: the
worker must read them without help after a restart, so the key would lie beside them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from sandlot.domain.errors import Conflict
from sandlot.domain.secrets.placement import parse_placement
from sandlot.domain.secrets.secret import MAX_SECRETS, Secret
from sandlot.worker.store.sqlite_file import SqliteFile

FILE_NAME: Final = "secrets.sqlite3"
_SECRETS: Final = """
CREATE TABLE secrets (
    name TEXT PRIMARY KEY, value TEXT NOT NULL, hosts TEXT NOT NULL, placement TEXT NOT NULL,
    tenants TEXT NOT NULL, environments TEXT NOT NULL
) STRICT;
"""
_SET: Final = """
INSERT INTO secrets VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value,
hosts = excluded.hosts, placement = excluded.placement, tenants = excluded.tenants,
environments = excluded.environments
"""


class SecretStore(SqliteFile):
    # A secret that was removed stays so after a crash of the machine.
    synchronous = "FULL"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / FILE_NAME, (_SECRETS,))

    async def set(self, secret: Secret) -> None:
        """Add a secret, or replace the one of the same name."""

        def work(database: sqlite3.Connection) -> None:
            [count] = database.execute(
                "SELECT count(*) FROM secrets WHERE name != ?", (secret.name,)
            ).fetchone()
            if count >= MAX_SECRETS:
                raise Conflict(f"This worker has {MAX_SECRETS} secrets, the most that it keeps. Remove one.")
            database.execute(_SET, _row(secret))

        await self._transaction(work)
        await self._on_thread(self._scrub)

    async def remove(self, name: str) -> bool:
        """Returns whether there was one."""

        def work(database: sqlite3.Connection) -> bool:
            return database.execute("DELETE FROM secrets WHERE name = ?", (name,)).rowcount > 0

        removed = await self._transaction(work)
        await self._on_thread(self._scrub)
        return removed

    async def all(self) -> Sequence[Secret]:
        """In the order of their names."""
        return await self._reading(
            lambda: [_secret(row) for row in self._rows("SELECT * FROM secrets ORDER BY name")]
        )

    async def version(self) -> int:
        """Changes when another process has changed the file."""
        [(version,)] = await self._reading(lambda: self._rows("PRAGMA data_version"))
        return int(version)

    def _scrub(self) -> None:
        """Empty the write-ahead log, which may still hold the old value."""
        try:
            self._rows("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.Error as error:
            raise self._problem(error) from error


def _row(secret: Secret) -> tuple[object, ...]:
    return (
        secret.name,
        secret.value,
        _list(secret.hosts),
        str(secret.placement),
        _list(secret.tenants),
        _list(secret.environments),
    )


def _secret(row: tuple[Any, ...]) -> Secret:
    name, value, hosts, placement, tenants, environments = row
    return Secret(
        name,
        value,
        msgspec.json.decode(hosts, type=tuple[str, ...]),
        parse_placement(placement),
        msgspec.json.decode(tenants, type=tuple[str, ...]),
        msgspec.json.decode(environments, type=tuple[str, ...]),
    )


def _list(entries: Sequence[str]) -> str:
    return msgspec.json.encode(entries).decode()
