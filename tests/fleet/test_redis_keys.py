"""The keys' suite on Redis, and keys when Redis fails."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio
from redis.asyncio import Redis

from sandlot.domain.callers.key_store import KeyStore
from sandlot.domain.callers.keys import parse_key
from sandlot.domain.errors import Unavailable
from sandlot.fleet.directory.redis_directory import RedisDirectory
from sandlot.fleet.keys.redis_keys import RedisKeys
from sandlot.testing.directory_suite.redis_server import RedisServer, redis_server
from sandlot.testing.key_suite import NOW, KeySuite, a_key, added

DEADLINE_S = 10.0


@pytest.fixture
def cell() -> str:
    return f"keys-{secrets.token_hex(4)}"


@asynccontextmanager
async def opened(url: str, cell: str, *, deadline_s: float = DEADLINE_S) -> AsyncIterator[RedisKeys]:
    directory = RedisDirectory.open(url, cell=cell, deadline_s=deadline_s)
    yield RedisKeys(directory.calls)
    await directory.close()


@pytest_asyncio.fixture
async def store(redis: RedisServer, cell: str) -> AsyncIterator[RedisKeys]:
    async with opened(redis.url, cell) as keys:
        yield keys


@pytest_asyncio.fixture
async def other(redis: RedisServer, cell: str) -> AsyncIterator[RedisKeys]:
    async with opened(redis.url, cell) as keys:
        yield keys


class TestRedis(KeySuite):
    pass


async def test_another_fleet_has_other_keys(store: KeyStore, redis: RedisServer) -> None:
    [key] = await added(store)
    async with opened(redis.url, "keys-elsewhere") as elsewhere:
        assert await elsewhere.get(key.id) is None


async def test_emptied(store: KeyStore, redis: RedisServer, cell: str) -> None:
    """A mark from before is not known, so that nobody goes on with keys that are gone."""
    await added(store)
    mark = (await store.changes()).mark
    client = Redis.from_url(redis.url)
    await client.delete(*[key async for key in client.scan_iter(f"sandlot:{{{cell}}}:*")])
    await client.aclose()
    changes = await store.changes(mark)
    assert changes.everything
    assert changes.keys == []


async def test_a_redis_that_lost_its_last_writes() -> None:
    """Its numbers begin again where it was, so that a mark from before means nothing to its new process."""
    with redis_server("--appendonly", "yes", "--appendfsync", "always") as server:
        async with opened(server.url, "default") as keys:
            [key] = await added(keys)
            mark = (await keys.changes()).mark
            assert not (await keys.changes(mark)).everything
            server.kill()
            server.start()
            changes = await keys.changes(mark)
            assert changes.everything
            assert [found.id for found in changes.keys] == [key.id]
            assert not (await keys.changes(changes.mark)).everything


async def test_a_record_of_a_newer_version(store: RedisKeys, redis: RedisServer, cell: str) -> None:
    """With a field and a scope that this version does not know, it can still be used and revoked."""
    [key] = await added(store)
    client = Redis.from_url(redis.url)
    name = f"sandlot:{{{cell}}}:keys"
    record = json.loads(await client.hget(name, key.id))
    record |= {"scopes": [*record["scopes"], "scope:of:tomorrow"], "note": "new"}
    await client.hset(name, key.id, json.dumps(record))
    assert await store.get(key.id) == key
    ended = await store.end(key.id, NOW, revoked=True)
    assert ended is not None
    assert ended.revoked_at == NOW
    await client.hset(name, key.id, "no key at all")
    assert await store.get(key.id) is None
    assert (await store.changes()).keys == []
    await client.aclose()


async def test_no_secret_in_redis_and_nothing_left(store: KeyStore, redis: RedisServer, cell: str) -> None:
    new = a_key(lifetime_s=5)
    await store.add(new.key)
    await store.record_use({new.key.id: NOW})
    parsed = parse_key(new.text)
    assert parsed is not None
    client = Redis.from_url(redis.url)
    names = [key async for key in client.scan_iter(f"sandlot:{{{cell}}}:*")]
    assert len(names) == 7
    stored = [await client.hgetall(name) for name in names if await client.type(name) == b"hash"]
    assert len(stored) == 3
    assert (
        parsed[0].encode() in stored[0] or parsed[0].encode() in stored[1] or parsed[0].encode() in stored[2]
    )
    assert parsed[1] not in str(stored)
    await store.forget_ended(NOW + 6)
    left = [key async for key in client.scan_iter(f"sandlot:{{{cell}}}:*")]
    assert left == [f"sandlot:{{{cell}}}:keys:meta".encode()]
    await client.aclose()


async def test_away() -> None:
    async with opened("redis://127.0.0.1:1/0", "default", deadline_s=1.0) as keys:
        with pytest.raises(Unavailable, match="Redis cannot be reached"):
            await keys.changes()
