"""Time: sessions end when they are idle or old, and are told apart from those that never were."""

from __future__ import annotations

import asyncio

import pytest

from sandlot.client.async_client import AsyncClient
from sandlot.domain.errors import SessionEnded
from sandlot.domain.session import EndReason
from sandlot.testing.service_suite.harness import Cases, ServiceHarness, ok, raises_within, unique

# How late an end may be noticed.
LATE = 6.0


class ExpiryCases(Cases):
    @pytest.fixture
    def short(self, service_harness: ServiceHarness) -> float:
        return service_harness.short_s

    async def test_idle(self, client: AsyncClient, short: float) -> None:
        session = await client.create(idle_timeout_s=short, lifetime_s=600)
        ended = await raises_within(lambda: client.get(session.id), SessionEnded, short + LATE)
        assert ended.details["reason"] == EndReason.IDLE
        assert ended.details["ended_at"] >= session.info.created_at + short
        assert "idle" in ended.message

    async def test_lifetime(self, client: AsyncClient, short: float) -> None:
        session = await client.create(idle_timeout_s=600, lifetime_s=short)
        ended = await raises_within(lambda: client.get(session.id), SessionEnded, short + LATE)
        assert ended.details["reason"] == EndReason.LIFETIME
        assert "lifetime" in ended.message

    async def test_lifetime_is_over_whatever_is_done(self, client: AsyncClient, short: float) -> None:
        session = await client.create(lifetime_s=short)
        ended = await raises_within(lambda: session.run("true"), SessionEnded, short + LATE)
        assert ended.details["reason"] == EndReason.LIFETIME

    async def test_commands_extend_idle_time(self, client: AsyncClient, short: float) -> None:
        async with await client.create(idle_timeout_s=short) as session:
            for _ in range(5):
                await asyncio.sleep(short / 3)
                assert await ok(session, "echo here") == "here\n"

    async def test_files_extend_idle_time(self, client: AsyncClient, short: float) -> None:
        async with await client.create(idle_timeout_s=short) as session:
            for number in range(5):
                await asyncio.sleep(short / 3)
                await session.files.write("f", str(number))
            assert await session.files.read_text("f") == "4"

    async def test_running_command_is_not_idle(self, client: AsyncClient, short: float) -> None:
        async with await client.create(idle_timeout_s=short) as session:
            assert await ok(session, f"sleep {short * 2}; echo done") == "done\n"

    async def test_background_command_is_not_idle(self, client: AsyncClient, short: float) -> None:
        async with await client.create(idle_timeout_s=short) as session:
            running = await session.start(f"sleep {short * 2}; echo done")
            await asyncio.sleep(short * 1.6)
            assert (await running.wait(20)).output == "done\n"

    async def test_extended_in_time(self, client: AsyncClient, short: float) -> None:
        async with await client.create(lifetime_s=short) as session:
            await session.extend(60)
            await asyncio.sleep(short + 0.5)
            assert await ok(session, "echo alive") == "alive\n"

    async def test_shortened(self, client: AsyncClient) -> None:
        session = await client.create(lifetime_s=600)
        await asyncio.sleep(0.2)
        await session.update(lifetime_s=0.1)
        ended = await raises_within(lambda: client.get(session.id), SessionEnded, LATE)
        assert ended.details["reason"] == EndReason.LIFETIME

    async def test_expired_session_is_not_listed(self, client: AsyncClient, short: float) -> None:
        thread = unique()
        session = await client.thread(thread, idle_timeout_s=short)
        await raises_within(lambda: client.get(session.id), SessionEnded, short + LATE)
        assert [found.id async for found in client.sessions(thread=thread)] == []
        async with await client.thread(thread) as following:
            assert following.created
            assert following.id != session.id

    async def test_expired_session_can_be_deleted(self, client: AsyncClient, short: float) -> None:
        session = await client.create(lifetime_s=short)
        await raises_within(lambda: client.get(session.id), SessionEnded, short + LATE)
        await session.delete()
