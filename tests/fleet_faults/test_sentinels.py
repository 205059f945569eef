"""The directory by Sentinels, without a fleet: whom it asks, and whom it does not speak to any more."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from unittest.mock import AsyncMock

import pytest

from sandlot.domain.errors import Unavailable
from sandlot.fleet.directory.redis_directory import RedisDirectory
from tests.fleet_faults.sentinels import NAME, Watched

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
# Two sentinels of three must agree: a vote that is split is taken again after ten seconds, and one that was held up
# itself takes no part for thirty.
FOLLOWED_WITHIN_S = 120.0
DEADLINE_S = 4.0


@pytest.fixture
def watched() -> Iterator[Watched]:
    watched = Watched()
    try:
        watched.start()
        yield watched
    finally:
        watched.remove()


def directory_of(watched: Watched) -> RedisDirectory:
    sentinels = [f"127.0.0.1:{port}" for port in watched.ports]
    return RedisDirectory.open(
        watched.primary.url,
        sentinels=sentinels,
        sentinel_name=NAME,
        sentinel_password=watched.password,
        deadline_s=DEADLINE_S,
    )


async def answers(directory: RedisDirectory) -> None:
    deadline = time.monotonic() + FOLLOWED_WITHIN_S
    while True:
        try:
            await directory.workers()
        except Unavailable as error:
            assert time.monotonic() < deadline, error.message
            await asyncio.sleep(0.2)
        else:
            return


async def test_sentinels_that_ask_for_a_password() -> None:
    watched = Watched(password="of-the-sentinels-alone")
    try:
        watched.start()
        directory = directory_of(watched)
        await directory.workers()
        await directory.close()
        watched.password = "another"
        directory = directory_of(watched)
        with pytest.raises(Unavailable):
            await directory.workers()
        await directory.close()
    finally:
        watched.remove()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
async def test_the_first_sentinel_goes_with_the_primary(watched: Watched, how: signal.Signals) -> None:
    """As they do where both are on one machine: the other Sentinels are asked, within the same call."""
    directory = directory_of(watched)
    try:
        await directory.workers()
        watched.signal_sentinel(0, how)
        watched.primary.signal(how)
        await answers(directory)
    finally:
        await directory.close()


async def test_a_primary_that_was_replaced_hears_nothing_more(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has closed the connections to it: it was cut off from the Sentinels alone."""
    directory = directory_of(watched)
    try:
        await asyncio.gather(*(directory.workers() for _ in range(8)))
        pool = directory.calls._redis.connection_pool
        idle = list(pool._available_connections)
        assert len(idle) > 1
        assert {connection.port for connection in idle if connection.is_connected} == {watched.primary.port}
        # What a new connection finds out from the Sentinels.
        replica = ("127.0.0.1", watched.replica.port)
        monkeypatch.setattr(pool.sentinel_manager, "discover_master", AsyncMock(return_value=replica))
        await pool.get_master_address()
        assert not any(connection.is_connected for connection in idle)
        with pytest.raises(Unavailable, match="is now a slave"):  # the replica itself says so: it was asked
            await directory.workers()
    finally:
        await directory.close()
