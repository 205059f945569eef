"""Directories for tests, both kinds, whose time passes when a test says so."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from redis.asyncio import Redis

from sandlot.fleet.directory.contract import Directory
from sandlot.fleet.directory.memory import MemoryDirectory
from sandlot.fleet.directory.redis_directory import RedisDirectory
from sandlot.testing.directory_suite.harness import TIMINGS, DirectoryHarness

# Not what these tests are about: a machine that stands still for a second must not end a call.
DEADLINE_S = 20.0
EMPTY = "for _, key in ipairs(redis.call('KEYS', ARGV[1])) do redis.call('DEL', key) end"


def in_memory() -> DirectoryHarness:
    now = 1000.0

    async def pass_time(seconds: float) -> None:
        nonlocal now
        now += seconds

    directory = MemoryDirectory(timings=TIMINGS, clock=lambda: now)

    async def empty() -> None:
        directory.empty()

    return DirectoryHarness(directory, directory, pass_time, empty)


def opened(url: str, cell: str) -> RedisDirectory:
    return RedisDirectory.open(url, cell=cell, timings=TIMINGS, deadline_s=DEADLINE_S)


@asynccontextmanager
async def in_redis(
    url: str, open_directory: Callable[[str, str], Directory] = opened
) -> AsyncIterator[DirectoryHarness]:
    """The scripts run as they always do, on Redis's own time; the directory's clock is set forward in Redis.

    ``open_directory``: makes a directory for the URL of a user who may do everything, and for a cell.
    """
    cell = f"case-{secrets.token_hex(4)}"
    one, two = open_directory(url, cell), open_directory(url, cell)
    plain = Redis.from_url(url)

    async def pass_time(seconds: float) -> None:
        await one.status()
        await plain.hincrby(f"sandlot:{{{cell}}}:meta", "clock", round(seconds * 1000))

    async def empty() -> None:
        # At once: whoever writes meanwhile must not find half of it.
        await plain.eval(EMPTY, 0, f"sandlot:{{{cell}}}:*")

    yield DirectoryHarness(one, two, pass_time, empty)
    for client in (one, two):
        await client.close()
    await empty()
    await plain.aclose()
