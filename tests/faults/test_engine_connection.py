"""The way to the engine is cut, slow, or answers nonsense, while the engine itself is well."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from sandlot import errors
from sandlot.testing.eventually import eventually
from tests.faults.invariants import told
from tests.faults.rig import HERE, ServerProcess, created_at_last
from tests.faults.valve import Valve

pytestmark = [pytest.mark.docker, pytest.mark.slow]
# Within 3 s at rest; the rest is a loaded machine's part.
NOTICED_WITHIN_S = 10.0


@pytest_asyncio.fixture
async def valve() -> AsyncIterator[Valve]:
    valve = Valve()
    await valve.open()
    yield valve
    await valve.clean()


@pytest_asyncio.fixture
async def behind(valve: Valve) -> AsyncIterator[ServerProcess]:
    """A server that reaches its engine through the valve alone, and holds nothing warm: that would be had
    although the engine cannot be.
    """
    server = ServerProcess(
        through=valve.host, queue_timeout_s="2", pool_size="0", min_pool_size="0", max_pool_size="0"
    )
    try:
        yield server
    finally:
        await server.clean()


async def test_a_container_goes_while_nobody_hears_of_it(behind: ServerProcess, valve: Valve) -> None:
    """Fault 29: the events that were missed are read from the list of all containers, once there is a line again."""
    await behind.start()
    async with behind.client() as client:
        kept, gone = await client.create(thread="kept"), await client.create(thread="gone")
        await kept.files.write("kept.txt", "here")
        await valve.cut()
        behind.docker("rm", "-f", behind.container_of(gone))
        # Execs need no engine; that a sandbox is gone cannot be known without one.
        assert (await kept.run("cat kept.txt")).output == "here"
        await valve.open()

        async def noticed() -> bool:
            return (await gone.refresh()).state == "lost"

        await eventually(noticed, NOTICED_WITHIN_S, "the full list was read")
        assert gone.info.loss is not None
        assert (await kept.refresh()).generation == 1
        assert (await kept.run("cat kept.txt")).output == "here"
        await gone.recreate()
        assert (await gone.run("echo new")).output == "new\n"
    await behind.settle()


@pytest.mark.parametrize("late", ["creates_late_by", "answers_late_by"])
async def test_a_create_that_is_given_up_too_early(behind: ServerProcess, valve: Valve, late: str) -> None:
    """Fault 27: done after all, before or after the worker cleaned up behind it. Nothing of it stays."""
    await behind.start([sys.executable, str(HERE / "hasty_server.py"), "0.7"])
    async with behind.client() as client:
        # Under load a create may take longer than this server waits, with nothing held back.
        session = await created_at_last(client, thread="before")
        made = valve.made
        setattr(valve, late, 2.0)
        creating = asyncio.create_task(client.create(thread="late", idempotency_key="late"))
        if late == "answers_late_by":
            # By the engine's own answer: the container is there for a moment only, until it is given up.
            await eventually(lambda: valve.made > made, 30, "the engine has made it")
        with pytest.raises(errors.Unavailable) as refused:
            await creating
        assert told(refused.value).retryable
        assert not refused.value.may_have_executed
        setattr(valve, late, 0.0)
        await asyncio.sleep(2.5)  # what was held is let go, and is nobody's
        after = await created_at_last(client, thread="late", idempotency_key="late")
        assert (await after.run("echo made")).output == "made\n"
        assert (await session.run("echo still")).output == "still\n"
    await behind.settle()


async def test_every_name_is_taken(behind: ServerProcess, valve: Valve) -> None:
    """Fault 28: conflicts are met with one more try and then with patience, whoever asks."""
    await behind.start()
    async with behind.client() as client:
        await (await client.create()).delete()
        valve.conflicts = True
        before = valve.creates
        began = time.monotonic()
        while time.monotonic() - began < 4:
            with pytest.raises(errors.Unavailable) as refused:
                await client.create(idempotency_key=os.urandom(8).hex())
            assert not told(refused.value).may_have_executed
            await asyncio.sleep(0.2)
        # Two for each attempt; attempts after 0, 1, 3 and 7 s, and one for what was being made.
        assert valve.creates - before <= 2 * 5
        valve.conflicts = False
        await created_at_last(client)
    await behind.settle()


async def test_two_remove_the_same(behind: ServerProcess, valve: Valve) -> None:
    """Fault 28: "removal is already in progress" is no error, the container is going."""
    await behind.start()
    async with behind.client() as client:
        sessions = [await client.create() for _ in range(3)]
        for session in sessions:
            container = behind.container_of(session)
            outside = await asyncio.create_subprocess_exec(
                "/usr/bin/docker", "rm", "-f", container, stdout=-3, stderr=-3
            )
            await asyncio.sleep(0.02)
            await session.delete()
            await outside.wait()
    await behind.settle()
