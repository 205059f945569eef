"""Hibernation: a session without a sandbox keeps its files, and its next use gives it a new one."""

from __future__ import annotations

import asyncio

import pytest

from sandlot.client.async_client import AsyncClient
from sandlot.client.async_session import AsyncSession
from sandlot.domain.errors import InvalidRequest, LinkInterrupted, NotFound, SandboxLost, SessionEnded
from sandlot.domain.session import KEPT_FILES, OnIdle, SessionState
from sandlot.testing.eventually import eventually
from sandlot.testing.service_suite.commands.background import EventReader
from sandlot.testing.service_suite.expiry import LATE
from sandlot.testing.service_suite.harness import (
    NEEDS_SNAPSHOTS,
    Cases,
    ServiceHarness,
    deleted_afterwards,
    ok,
    raises_within,
    unique,
)
from sandlot.testing.service_suite.loss import REPORTED_WITHIN, lose
from sandlot.testing.service_suite.workspaces.trees import plant, shown


async def asleep(session: AsyncSession, seconds: float) -> None:
    async def hibernates() -> bool:
        return (await session.refresh()).state is SessionState.HIBERNATED

    await eventually(hibernates, seconds, "the session hibernates")


class HibernationCases(Cases):
    async def test_hibernates_on_request_and_wakes(self, fresh: AsyncSession) -> None:
        planted = await plant(fresh)
        await ok(fresh, "echo gone >/tmp/gone")
        await fresh.hibernate()
        info = fresh.info
        assert (info.state, info.sandbox_id, info.generation) == (SessionState.HIBERNATED, None, 1)
        assert info.loss is not None
        assert info.loss.generation == 1
        assert "request" in info.loss.reason
        assert KEPT_FILES in info.loss.kept
        assert "files in /tmp" in info.loss.lost
        result = await fresh.run("echo awake")
        assert (result.output, result.generation) == ("awake\n", 2)
        info = (await fresh.refresh()).info
        assert (info.state, info.generation) == (SessionState.ACTIVE, 2)
        assert info.loss is not None
        assert info.loss.generation == 1
        assert await shown(fresh) == planted
        assert not await fresh.files.exists("/tmp/gone")

    async def test_hibernating_twice_is_no_error(self, fresh: AsyncSession) -> None:
        await fresh.hibernate()
        await fresh.hibernate()
        assert fresh.state is SessionState.HIBERNATED
        assert fresh.generation == 1

    async def test_every_use_wakes_it(self, fresh: AsyncSession) -> None:
        await fresh.files.write("kept", b"kept")
        generation = 1
        for use in (
            lambda: fresh.files.read("kept"),
            lambda: fresh.files.list(),
            lambda: fresh.files.write("kept", b"kept"),
            lambda: fresh.shell("main").run("true"),
            lambda: fresh.start("true"),
            lambda: fresh.recreate(),
        ):
            await fresh.hibernate()
            await use()
            generation += 1
            assert (await fresh.refresh()).state is SessionState.ACTIVE
            assert fresh.generation == generation
        assert await fresh.files.read("kept") == b"kept"

    async def test_looking_does_not_wake_it(self, fresh: AsyncSession, client: AsyncClient) -> None:
        await fresh.hibernate()
        assert (await client.get(fresh.id)).state is SessionState.HIBERNATED
        assert (fresh.id, SessionState.HIBERNATED) in [
            (found.id, found.state) async for found in client.sessions()
        ]
        await fresh.workspace.status()
        await fresh.update(metadata={"seen": "yes"})
        assert (await fresh.refresh()).state is SessionState.HIBERNATED

    async def test_many_calls_wake_it_once(self, fresh: AsyncSession) -> None:
        await fresh.hibernate()
        results = await asyncio.gather(*(fresh.run("echo awake") for _ in range(6)))
        assert {(result.output, result.generation) for result in results} == {("awake\n", 2)}

    async def test_hibernation_ends_commands(self, fresh: AsyncSession) -> None:
        running = await fresh.start("echo begun; sleep 60")
        reader = EventReader(running.events())
        await reader.read_until(b"begun")
        await fresh.hibernate()
        with pytest.raises((SandboxLost, LinkInterrupted)) as caught:
            await asyncio.wait_for(reader.read_to_end(), REPORTED_WITHIN)
        assert caught.value.may_have_executed
        with pytest.raises((NotFound, SandboxLost)):
            await running.status()

    async def test_variables_survive_hibernation(self, client: AsyncClient) -> None:
        async with await client.create(env={"KEPT": "yes"}, metadata={"m": "1"}) as session:
            await session.hibernate()
            assert await ok(session, "echo $KEPT") == "yes\n"
            assert session.info.metadata == {"m": "1"}

    async def test_a_thread_wakes(self, client: AsyncClient) -> None:
        thread = unique()
        async with deleted_afterwards(client.thread(thread)) as session:
            await session.files.write("kept", b"kept")
            await session.hibernate()
            again = await client.thread(thread)
            assert (again.id, again.created, again.generation) == (session.id, False, 2)
            assert await again.files.read("kept") == b"kept"
            await again.hibernate()
            result = await client.run_in_thread(thread, "cat kept")
            assert (result.output, result.generation) == ("kept", 3)

    async def test_deleted_while_it_hibernates(self, client: AsyncClient) -> None:
        session = await client.create()
        await session.hibernate()
        await session.delete()
        with pytest.raises(SessionEnded):
            await session.run("true")
        with pytest.raises(SessionEnded):
            await session.hibernate()

    async def test_lost_session_cannot_hibernate(
        self, service_harness: ServiceHarness, fresh: AsyncSession
    ) -> None:
        await lose(service_harness, fresh)
        with pytest.raises(SandboxLost):
            await fresh.hibernate()

    async def test_idle_session_hibernates(
        self, service_harness: ServiceHarness, client: AsyncClient
    ) -> None:
        async with await client.create(on_idle="hibernate") as session:
            assert session.info.on_idle is OnIdle.HIBERNATE
            await session.files.write("kept", b"kept")
            await session.update(idle_timeout_s=service_harness.short_s)
            await asleep(session, service_harness.short_s + LATE)
            assert session.info.loss is not None
            assert "idle" in session.info.loss.reason
            expires_at = session.info.expires_at
            assert expires_at is not None
            assert expires_at > session.info.last_active_at + 60
            assert await session.files.read("kept") == b"kept"

    async def test_lifetime_begins_again(self, service_harness: ServiceHarness, client: AsyncClient) -> None:
        async with await client.create(on_idle="hibernate") as session:
            await asyncio.sleep(0.2)
            await session.update(lifetime_s=0.1)  # which counts from the session's creation
            await asleep(session, LATE)
            assert session.info.loss is not None
            assert "lifetime" in session.info.loss.reason
            await session.update(lifetime_s=600)
            await ok(session, "true")
            info = (await session.refresh()).info
            assert info.state is SessionState.ACTIVE
            assert info.woken_at is not None
            assert info.lifetime_from == info.woken_at > info.created_at

    async def test_ends_when_asked_to(self, service_harness: ServiceHarness, client: AsyncClient) -> None:
        short = service_harness.short_s
        session = await client.create(on_idle="end", idle_timeout_s=short)
        assert session.info.on_idle is OnIdle.END
        await raises_within(lambda: client.get(session.id), SessionEnded, short + LATE)

    async def test_refused_on_idle(self, client: AsyncClient) -> None:
        with pytest.raises(InvalidRequest, match="hibernate"):
            await client.create(on_idle="sleep")  # type: ignore[arg-type]

    @NEEDS_SNAPSHOTS
    async def test_snapshots_of_a_hibernated_session(self, fresh: AsyncSession) -> None:
        await fresh.files.write("kept", b"1")
        await fresh.hibernate()
        snapshot = await fresh.workspace.snapshot()
        assert (await fresh.refresh()).state is SessionState.HIBERNATED
        await fresh.files.write("kept", b"2")
        await fresh.hibernate()
        await fresh.workspace.restore(snapshot)
        assert fresh.state is SessionState.ACTIVE
        assert await fresh.files.read("kept") == b"1"
