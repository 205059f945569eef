"""The page about backups is followed for Redis; tests/faults/test_backup.py does its other half."""

from __future__ import annotations

import os
import signal
import subprocess
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
        # redis-cli reads the password from what it is given, if that is no terminal.
        typed = f"redis-cli -p {redis.port}"
        found.text = found.text.replace("redis-cli", typed).rstrip() + f" <{folder}/secrets/redis-admin\n"
    return found


def make_users(folder: Path) -> tuple[tuple[str, str], str]:
    """As a fleet's Redis has them. The options that name them, and the password of ``admin``."""
    secrets = folder / "secrets"
    secrets.mkdir()
    subprocess.run([ROOT / "deploy/redis/users", secrets, "worker-a"], check=True, capture_output=True)
    return ("--aclfile", str(secrets / "redis-users")), (secrets / "redis-admin").read_text().strip()


@asynccontextmanager
async def keys_of(redis: RedisServer, password: str) -> AsyncIterator[RedisKeys]:
    url = redis.url.replace("://", f"://admin:{password}@")
    directory = RedisDirectory.open(url, cell="default", deadline_s=10.0)
    yield RedisKeys(directory.calls)
    await directory.close()


async def test_keys_of_a_fleet_come_back(tmp_path: Path) -> None:
    key, later = a_key().key, a_key().key
    environ = dict(os.environ)
    lost = tmp_path / "redis"
    lost.mkdir()
    users, password = make_users(lost)
    with redis_server(*AS_SHIPPED, *users) as redis:
        async with keys_of(redis, password) as keys:
            await keys.add(key)
        run_block(block("redis", lost, redis), tmp_path, environ)
        async with keys_of(redis, password) as keys:
            await keys.add(later)
    (lost / "appendonlydir").mkdir()
    run_block(block("restore", lost, redis), tmp_path, environ)
    with redis_server(*AS_SHIPPED, *users, "--dir", str(lost)) as redis:
        for _ in range(2):
            async with keys_of(redis, password) as keys:
                assert await keys.get(key.id) == key
                assert await keys.get(later.id) is None
            redis.signal(signal.SIGTERM)
            assert redis._process is not None
            redis._process.wait(30)
            redis.start()
