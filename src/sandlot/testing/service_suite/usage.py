"""What a session's sandbox uses, measured from outside."""

from __future__ import annotations

import time

import pytest

from sandlot.client.async_client import AsyncClient
from sandlot.client.async_session import AsyncSession
from sandlot.domain.errors import SessionEnded
from sandlot.testing.service_suite.harness import Cases

# Two machines of a fleet may disagree about the time by so much.
CLOCKS_DIFFER_S = 60.0


class UsageCases(Cases):
    async def test_usage_of_a_sandbox(self, fresh: AsyncSession) -> None:
        before = await fresh.usage()
        limits = fresh.info.limits
        assert (before.cpus, before.memory_limit_bytes, before.processes_limit) == (
            limits.cpus,
            limits.memory_bytes,
            limits.pids,
        )
        assert abs(before.measured_at - time.time()) < CLOCKS_DIFFER_S
        assert 1 <= before.processes <= limits.pids
        assert 0 <= before.memory_bytes <= limits.memory_bytes
        command = await fresh.start("sleep 60")
        during = await fresh.usage()
        assert during.processes > before.processes
        assert during.cpu_s >= before.cpu_s
        await command.kill()

    async def test_usage_is_no_use_of_the_session(self, session: AsyncSession) -> None:
        before = (await session.refresh()).info.last_active_at
        await session.usage()
        assert (await session.refresh()).info.last_active_at == before

    async def test_a_session_that_hibernates_uses_its_disk_only(self, fresh: AsyncSession) -> None:
        await fresh.files.write("kept", b"x" * 100_000)
        await fresh.hibernate()
        usage = await fresh.usage()
        assert (usage.processes, usage.memory_bytes, usage.cpu_s) == (0, 0, 0.0)
        assert usage.disk_bytes is None or usage.disk_bytes > 0
        assert (await fresh.refresh()).info.sandbox_id is None, "it was not woken"

    async def test_usage_of_a_session_that_ended(self, client: AsyncClient) -> None:
        async with client.create() as session:
            pass
        with pytest.raises(SessionEnded):
            await session.usage()
