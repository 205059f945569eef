"""The keys' suite on SQLite, and what is special to a file."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from sandlot.domain.callers.key_store import KeyStore
from sandlot.domain.callers.keys import parse_key
from sandlot.domain.callers.limits import CallerLimits
from sandlot.domain.errors import EngineProblem
from sandlot.testing.key_suite import KeySuite, a_key
from sandlot.wire.stored_keys import encode_key, encode_limits
from sandlot.worker.store.keys import _KEYS, _TENANTS, FILE_NAME, SqliteKeys
from sandlot.worker.store.sqlite_file import SqliteFile


class TestSqlite(KeySuite):
    @pytest_asyncio.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[KeyStore]:
        keys = SqliteKeys(tmp_path)
        await keys.open()
        yield keys
        await keys.close()

    @pytest_asyncio.fixture
    async def other(self, store: KeyStore) -> KeyStore:
        """The same: one process owns the file."""
        return store


async def test_after_a_restart(tmp_path: Path) -> None:
    new = a_key()
    marks = []
    for _ in range(2):
        keys = SqliteKeys(tmp_path)
        await keys.open()
        if not marks:
            await keys.add(new.key)
        marks.append((await keys.changes()).mark)
        assert await keys.get(new.key.id) == new.key
        await keys.close()
    assert marks[0] == marks[1]


async def test_a_file_for_its_owner_alone_without_the_secret(tmp_path: Path) -> None:
    keys, new = SqliteKeys(tmp_path), a_key()
    await keys.open()
    await keys.add(new.key)
    await keys.close()
    file = tmp_path / FILE_NAME
    assert file.stat().st_mode & 0o777 == 0o600
    parsed = parse_key(new.text)
    assert parsed is not None
    assert parsed[1].encode() not in file.read_bytes()


async def test_a_file_from_before_tenants_had_limits(tmp_path: Path) -> None:
    before, new = SqliteFile(tmp_path / FILE_NAME, (_KEYS,)), a_key()
    await before.open()
    await before._write(
        [("INSERT INTO keys VALUES (?, 'acme', 1, NULL, NULL, ?)", (new.key.id, encode_key(new.key)))]
    )
    await before.close()
    keys = SqliteKeys(tmp_path)
    await keys.open()
    await keys.set_limits("acme", CallerLimits(sessions=1))
    assert await keys.get(new.key.id) == new.key
    assert (await keys.changes()).limits == {"acme": CallerLimits(sessions=1)}
    await keys.close()


async def test_a_file_from_before_tenants_had_policies(tmp_path: Path) -> None:
    before, limits = SqliteFile(tmp_path / FILE_NAME, (_KEYS, _TENANTS)), CallerLimits(sessions=1)
    await before.open()
    await before._write([("INSERT INTO tenants VALUES ('acme', 1, ?)", (encode_limits(limits),))])
    await before.close()
    keys = SqliteKeys(tmp_path)
    await keys.open()
    before_it = await keys.changes()
    assert (before_it.limits, before_it.policies) == ({"acme": limits}, {"acme": None})
    await keys.set_policy("acme", "validation")
    after_it = await keys.changes()
    assert (after_it.limits, after_it.policies) == ({"acme": limits}, {"acme": "validation"})
    await keys.close()


async def test_a_file_of_a_newer_version(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / FILE_NAME) as database:
        database.execute("PRAGMA user_version = 99")
    database.close()
    keys = SqliteKeys(tmp_path)
    with pytest.raises(EngineProblem, match="newer version"):
        await keys.open()
    await keys.close()
