"""The page about backups is followed for Redis; tests/faults/test_backup.py does its other half."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from sandlot.fleet.directory.redis_directory import RedisDirectory
from sandlot.fleet.keys.redis_keys import RedisKeys
from sandlot.testing.directory_suite.redis_server import RedisServer, redis_server
from sandlot.testing.key_suite import a_key
from tests.docs.test_tutorial import ROOT, Block, blocks, run_block

PAGE = ROOT / "docs/operations/backup.md"
AS_SHIPPED = ("--appendonly", "yes")


def block(role: str, folder: Path, redis: RedisServer) -> Block:
    (found,) = (block for block in blocks(PAGE) if block.role == role)
    found.text = found.text.replace("/tmp/", f"{folder}/").replace("/var/lib/redis", str(folder))
    if role == "redis":
        found.text = found.text.replace("redis-cli", f"redis-cli -p {redis.port}")
    return found


@asynccontextmanager
async def keys_of(redis: RedisServer) -> AsyncIterator[RedisKeys]:
    directory = RedisDirectory.open(redis.url, cell="default", deadline_s=10.0)
    yield RedisKeys(directory.calls)
    await directory.close()


async def test_keys_of_a_fleet_come_back(tmp_path: Path) -> None:
    key, later = a_key().key, a_key().key
    environ = dict(os.environ)
    lost = tmp_path / "redis"
    lost.mkdir()
    with redis_server(*AS_SHIPPED) as redis:
        async with keys_of(redis) as keys:
            await keys.add(key)
        run_block(block("redis", lost, redis), tmp_path, environ)
        async with keys_of(redis) as keys:
            await keys.add(later)
    (lost / "appendonlydir").mkdir()
    run_block(block("restore", lost, redis), tmp_path, environ)
    with redis_server(*AS_SHIPPED, "--dir", str(lost)) as redis:
        for _ in range(2):
            async with keys_of(redis) as keys:
                assert await keys.get(key.id) == key
                assert await keys.get(later.id) is None
            redis.signal(signal.SIGTERM)
            assert redis._process is not None
            redis._process.wait(30)
            redis.start()
