"""Expiry: idle and old sessions end, and an ended session differs from one that never existed."""

from __future__ import annotations

import asyncio

import pytest

from sandlot.client.async_client import AsyncClient
from sandlot.domain.errors import SessionEnded
from sandlot.domain.session import EndReason
from sandlot.testing.eventually import eventually
from sandlot.testing.service_suite.commands.background import EventReader
from sandlot.testing.service_suite.harness import (
    Cases,
    ServiceHarness,
    deleted_afterwards,
    ok,
    raises_within,
    unique,
)

# Seconds that a session may take to end after its expiry. The bound only catches sessions that
# would never end: a busy machine pauses for seconds.
LATE = 30.0
# Seconds that the machine may pause between two calls when the second must come before a timeout.
PAUSE = 3.0


class ExpiryCases(Cases):
    @pytest.fixture
    def short(self, service_harness: ServiceHarness) -> float:
        return service_harness.short_s

    async def test_idle(self, client: AsyncClient, short: float) -> None:
        session = await client.create(idle_timeout_s=short, lifetime_s=600, on_idle="end")
        ended = await raises_within(lambda: client.get(session.id), SessionEnded, short + LATE)
        assert ended.details["reason"] == EndReason.IDLE
        assert ended.details["ended_at"] >= session.info.created_at + short
        assert "idle" in ended.message

    async def test_lifetime(self, client: AsyncClient, short: float) -> None:
        session = await client.create(idle_timeout_s=600, lifetime_s=short, on_idle="end")
        ended = await raises_within(lambda: client.get(session.id), SessionEnded, short + LATE)
        assert ended.details["reason"] == EndReason.LIFETIME
        assert "lifetime" in ended.message

    async def test_lifetime_is_over_whatever_is_done(self, client: AsyncClient, short: float) -> None:
        session = await client.create(lifetime_s=short, on_idle="end")
        ended = await raises_within(lambda: session.run("true"), SessionEnded, short + LATE)
        assert ended.details["reason"] == EndReason.LIFETIME

    async def test_commands_extend_idle_time(self, client: AsyncClient, short: float) -> None:
        clock, idle = asyncio.get_running_loop().time, short + PAUSE
        async with await client.create(idle_timeout_s=idle, on_idle="end") as session:
            begin = clock()
            while clock() - begin < 1.3 * idle:
                await asyncio.sleep(0.2)
                assert await ok(session, "echo here") == "here\n"

    async def test_files_extend_idle_time(self, client: AsyncClient, short: float) -> None:
        clock, idle = asyncio.get_running_loop().time, short + PAUSE
        async with await client.create(idle_timeout_s=idle, on_idle="end") as session:
            begin = clock()
            while clock() - begin < 1.3 * idle:
                await asyncio.sleep(0.2)
                await session.files.write("f", b"kept")
            assert await session.files.read("f") == b"kept"

    async def test_running_command_is_not_idle(self, client: AsyncClient, short: float) -> None:
        async with await client.create(on_idle="end") as session:
            running = asyncio.create_task(ok(session, f"sleep {short * 2 + 0.5}; echo done"))

            async def begun() -> bool:
                return bool(await session.execs())

            # Set the timeout only now: a session that waits long for its first command is idle.
            await eventually(begun, LATE, "the command is there")
            await session.update(idle_timeout_s=short)
            assert await running == "done\n"

    async def test_background_command_is_not_idle(self, client: AsyncClient, short: float) -> None:
        async with await client.create(on_idle="end") as session:
            running = await session.start("echo begun; sleep 60")
            await EventReader(running.events()).read_until(b"begun")
            await session.update(idle_timeout_s=short)
            await asyncio.sleep(short * 2 + 0.5)
            assert (await running.status()).running
            await session.update(idle_timeout_s=600)
            await running.kill()
            assert (await running.wait(20)).output == "begun\n"

    async def test_running_command_outlives_the_lifetime(self, client: AsyncClient, short: float) -> None:
        """An accepted command finishes, the session refuses new ones, and then it ends."""
        session = await client.create(on_idle="end")
        running = asyncio.create_task(ok(session, f"sleep {short * 2 + PAUSE}; echo done"))

        async def begun() -> bool:
            return bool(await session.execs())

        await eventually(begun, LATE, "the command is there")
        await session.update(lifetime_s=0.1)
        await asyncio.sleep(0.2)  # the lifetime counts from the session's creation
        with pytest.raises(SessionEnded, match="lifetime"):
            await session.run("true")
        with pytest.raises(SessionEnded, match="lifetime"):
            await session.files.write("f", b"x")
        assert [known.running for known in await session.execs()] == [True]
        assert await running == "done\n"
        ended = await raises_within(lambda: client.get(session.id), SessionEnded, LATE)
        assert ended.details["reason"] == EndReason.LIFETIME

    async def test_extended_in_time(self, client: AsyncClient, short: float) -> None:
        async with await client.create(lifetime_s=short + PAUSE, on_idle="end") as session:
            await session.extend(60)
            await asyncio.sleep(short + PAUSE + 0.5)
            assert await ok(session, "echo alive") == "alive\n"

    async def test_shortened(self, client: AsyncClient) -> None:
        session = await client.create(lifetime_s=600, on_idle="end")
        await asyncio.sleep(0.2)
        await session.update(lifetime_s=0.1)
        ended = await raises_within(lambda: client.get(session.id), SessionEnded, LATE)
        assert ended.details["reason"] == EndReason.LIFETIME

    async def test_expired_session_is_not_listed(self, client: AsyncClient, short: float) -> None:
        thread = unique()
        session = await client.thread(thread, idle_timeout_s=short, on_idle="end")
        await raises_within(lambda: client.get(session.id), SessionEnded, short + LATE)
        assert [found.id async for found in client.sessions(thread=thread)] == []
        async with deleted_afterwards(client.thread(thread)) as following:
            assert following.created
            assert following.id != session.id

    async def test_expired_session_can_be_deleted(self, client: AsyncClient, short: float) -> None:
        session = await client.create(lifetime_s=short, on_idle="end")
        await raises_within(lambda: client.get(session.id), SessionEnded, short + LATE)
        await session.delete()
