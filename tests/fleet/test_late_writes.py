"""Writes that reach Redis late, because the network held them back after their caller gave up."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from sandlot.domain.errors import Unavailable
from sandlot.fleet.directory.contract import SessionEntry, Timings, WorkerCard
from sandlot.fleet.directory.redis_directory import RedisDirectory
from sandlot.testing.directory_suite.harness import a_session
from sandlot.testing.directory_suite.redis_server import RedisServer
from tests.fleet_faults.network import Line

CARD = WorkerCard("w1", "http://w1:8000", "1.0")
DEADLINE_S = 3.0
# There and back: what is sent arrives after half of it, and its caller has given up by then.
LATE_S = 9.0


@pytest.fixture
def line(redis: RedisServer) -> Iterator[Line]:
    line = Line(redis.port)
    line.open()
    yield line
    line.close()


@pytest_asyncio.fixture
async def directory(redis: RedisServer, line: Line) -> AsyncIterator[RedisDirectory]:
    directory = RedisDirectory.open(
        f"redis://127.0.0.1:{line.port}/0",
        cell=f"late-writes-{secrets.token_hex(4)}",
        timings=Timings(lease_s=60.0, lost_after_s=60.0),
        deadline_s=DEADLINE_S,
    )
    yield directory
    await directory.close()


async def test_a_late_record_does_not_undo_a_forget(directory: RedisDirectory, line: Line) -> None:
    """A create that could not be recorded is forgotten while its record is still on the way."""
    lease = await directory.join(CARD, "p")
    before, given_up, after = a_session(), a_session(), a_session()
    await directory.record(lease, [SessionEntry(before)])
    line.late_by = LATE_S
    with pytest.raises(Unavailable, match="did not answer"):
        await directory.record(lease, [SessionEntry(given_up)])
    line.late_by = 0.0
    await directory.forget(lease, [given_up.id])
    await asyncio.sleep(LATE_S / 2)
    await directory.record(lease, [SessionEntry(after)])
    assert set((await directory.held("w1")).ids) == {before.id, after.id}


async def test_a_new_process_numbers_its_writes_from_the_beginning(redis: RedisServer) -> None:
    for _ in range(2):
        directory = RedisDirectory.open(redis.url, cell="late-writes-anew", deadline_s=DEADLINE_S)
        lease = await directory.join(CARD, "p")
        session = a_session()
        for _ in range(5):
            await directory.record(lease, [SessionEntry(session)])
        assert (await directory.held("w1")).ids == (session.id,)
        await directory.forget(lease, [session.id])
        await directory.close()


async def test_a_write_that_is_overtaken_while_its_caller_waits_is_sent_again(
    directory: RedisDirectory, line: Line
) -> None:
    lease = await directory.join(CARD, "p")
    opened, forgotten = a_session(), a_session()
    await directory.record(lease, [SessionEntry(forgotten)])
    line.late_by = DEADLINE_S / 2
    record = asyncio.create_task(directory.record(lease, [SessionEntry(opened)]))
    await asyncio.sleep(DEADLINE_S / 30)
    line.late_by = 0.0
    await directory.forget(lease, [forgotten.id])
    assert not record.done()
    assert await record == frozenset()
    assert (await directory.held("w1")).ids == (opened.id,)
