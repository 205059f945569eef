"""A sandbox that is gone: reported, never silently replaced, and made anew when asked."""

from __future__ import annotations

import asyncio

import pytest

from sandlot.client.async_client import AsyncClient
from sandlot.client.async_session import AsyncSession
from sandlot.domain.errors import LinkInterrupted, NotFound, SandboxLost
from sandlot.domain.session import SessionState
from sandlot.testing.eventually import eventually
from sandlot.testing.service_suite.background import Listener
from sandlot.testing.service_suite.harness import (
    Cases,
    ServiceHarness,
    check_three_fields,
    deleted,
    ok,
    raises_within,
    unique,
)

# Seconds within which a loss must be told: the engine tells at once, and a busy one a few seconds later.
TOLD = 15.0


async def lose(harness: ServiceHarness, session: AsyncSession) -> None:
    await harness.lose(session.id)

    async def lost() -> bool:
        return (await session.refresh()).state is SessionState.LOST

    await eventually(lost, TOLD, "the session is lost")


class LossCases(Cases):
    async def test_told_with_a_report(self, service_harness: ServiceHarness, fresh: AsyncSession) -> None:
        await ok(fresh, "true")
        await service_harness.lose(fresh.id)
        error = await raises_within(lambda: fresh.run("true"), SandboxLost, TOLD)
        check_three_fields(error)
        loss = error.details["loss"]
        assert loss["generation"] == 1
        assert loss["at"] >= fresh.info.created_at
        assert loss["reason"]
        assert loss["lost"]
        assert loss["kept"]
        info = (await fresh.refresh()).info
        assert (info.state, info.sandbox_id) == (SessionState.LOST, None)
        assert info.loss is not None
        assert (info.loss.generation, list(info.loss.lost)) == (1, loss["lost"])

    async def test_everything_is_refused(self, service_harness: ServiceHarness, fresh: AsyncSession) -> None:
        await lose(service_harness, fresh)
        for call in (
            fresh.run("true"),
            fresh.start("true"),
            fresh.execs(),
            fresh.shells(),
            fresh.files.read("f"),
            fresh.files.write("f", b"x"),
            fresh.files.list(),
        ):
            with pytest.raises(SandboxLost):
                await call

    async def test_running_command_is_told(
        self, service_harness: ServiceHarness, fresh: AsyncSession
    ) -> None:
        running = asyncio.create_task(fresh.run("echo x >begun; sleep 60"))

        async def begun() -> bool:
            return await fresh.files.exists("begun")

        await eventually(begun, 20, "the command runs")
        await service_harness.lose(fresh.id)
        with pytest.raises(SandboxLost) as caught:
            await asyncio.wait_for(running, TOLD + 7)
        assert caught.value.may_have_executed

    async def test_reader_is_told(self, service_harness: ServiceHarness, fresh: AsyncSession) -> None:
        running = await fresh.start("echo begun; sleep 60")
        listener = Listener(running.events())
        await listener.until(b"begun")
        await service_harness.lose(fresh.id)
        with pytest.raises((SandboxLost, LinkInterrupted)) as caught:
            await asyncio.wait_for(listener.rest(), TOLD + 7)
        if isinstance(caught.value, LinkInterrupted):
            # The link broke before the engine told why. Whoever asks again by the exec's id is told.
            assert (caught.value.retryable, caught.value.may_have_executed) == (True, True)
            told = await raises_within(running.status, SandboxLost, TOLD)
        else:
            told = caught.value
        assert told.details["loss"]["generation"] == 1

    async def test_recreate(self, service_harness: ServiceHarness, client: AsyncClient) -> None:
        async with await client.create(env={"KEPT": "yes"}, metadata={"m": "1"}) as session:
            await session.files.write("/workspace/gone", b"x")
            before = await session.run("echo first")
            await lose(service_harness, session)
            await session.recreate()
            info = session.info
            assert (info.state, info.generation, info.metadata) == (SessionState.ACTIVE, 2, {"m": "1"})
            assert info.loss is not None
            assert info.loss.generation == 1
            result = await session.run("echo $KEPT")
            assert (result.output, result.generation) == ("yes\n", 2)
            kept = any("workspace" in thing for thing in info.loss.kept)
            assert await session.files.exists("/workspace/gone") == kept
            with pytest.raises(NotFound):
                await (await session.exec(before.exec_id)).status()
            assert list(await session.shells()) == []

    async def test_recreate_again(self, service_harness: ServiceHarness, fresh: AsyncSession) -> None:
        for generation in (2, 3):
            await lose(service_harness, fresh)
            await fresh.recreate()
            assert fresh.generation == generation
            assert (await fresh.run("true")).generation == generation

    async def test_lost_session_can_be_deleted(
        self, service_harness: ServiceHarness, client: AsyncClient
    ) -> None:
        session = await client.create()
        await lose(service_harness, session)
        await session.delete()
        assert session.id not in [found.id async for found in client.sessions()]

    async def test_lost_session_is_listed(self, service_harness: ServiceHarness, client: AsyncClient) -> None:
        thread = unique()
        async with deleted(client.thread(thread)) as session:
            await lose(service_harness, session)
            (found,) = [found async for found in client.sessions(thread=thread)]
            assert (found.id, found.state) == (session.id, SessionState.LOST)

    async def test_thread_of_a_lost_session(
        self, service_harness: ServiceHarness, client: AsyncClient
    ) -> None:
        thread = unique()
        async with deleted(client.thread(thread)) as session:
            await lose(service_harness, session)
            again = await client.thread(thread)
            assert (again.id, again.created, again.state) == (session.id, False, SessionState.LOST)
            with pytest.raises(SandboxLost):
                await client.run_in_thread(thread, "true")
            anew = await client.thread(thread, recreate_lost=True)
            assert (anew.id, anew.state, anew.generation) == (session.id, SessionState.ACTIVE, 2)
            assert anew.info.loss is not None
            assert await ok(anew, "echo goes on") == "goes on\n"

    async def test_run_in_a_lost_thread(self, service_harness: ServiceHarness, client: AsyncClient) -> None:
        thread = unique()
        async with deleted(client.thread(thread)) as session:
            await lose(service_harness, session)
            result = await client.run_in_thread(thread, "echo anew", recreate_lost=True)
            assert (result.output, result.generation, result.session_id) == ("anew\n", 2, session.id)

    async def test_others_are_spared(
        self, service_harness: ServiceHarness, session: AsyncSession, fresh: AsyncSession
    ) -> None:
        await lose(service_harness, fresh)
        assert await ok(session, "echo alive") == "alive\n"
