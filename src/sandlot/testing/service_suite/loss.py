"""Sandboxes that are gone, and sandboxes that do not answer.

A lost sandbox is reported, never silently replaced, and recreated when a caller asks. When a
sandbox does not answer, every call on it still ends. Its session is unresponsive until the sandbox
answers.
"""

from __future__ import annotations

import asyncio

import pytest

from sandlot.client.async_client import AsyncClient
from sandlot.client.async_session import AsyncSession
from sandlot.domain.errors import LinkInterrupted, NotFound, SandboxLost, SandboxUnresponsive
from sandlot.domain.session import KEPT_FILES, SessionState
from sandlot.testing.eventually import eventually
from sandlot.testing.service_suite.commands.background import EventReader
from sandlot.testing.service_suite.harness import (
    Cases,
    ServiceHarness,
    check_three_fields,
    deleted_afterwards,
    ok,
    raises_within,
    unique,
)

# Seconds within which a loss must be reported. A busy engine takes a few seconds.
REPORTED_WITHIN = 15.0
# Seconds within which a call on a silent sandbox ends: its timeout, the grace period, and some
# delay for a busy machine.
ENDS_WITHIN = 60.0
# Seconds within which every part of the service knows that a sandbox is silent, or answers again.
KNOWN_WITHIN = 60.0


async def lose(harness: ServiceHarness, session: AsyncSession) -> None:
    await harness.lose(session.id)

    async def lost() -> bool:
        return (await session.refresh()).state is SessionState.LOST

    await eventually(lost, REPORTED_WITHIN, "the session is lost")


class LossCases(Cases):
    async def test_told_with_a_report(self, service_harness: ServiceHarness, fresh: AsyncSession) -> None:
        await ok(fresh, "true")
        await service_harness.lose(fresh.id)
        error = await raises_within(lambda: fresh.run("true"), SandboxLost, REPORTED_WITHIN)
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
            await asyncio.wait_for(running, REPORTED_WITHIN + 7)
        assert caught.value.may_have_executed

    async def test_reader_is_told(self, service_harness: ServiceHarness, fresh: AsyncSession) -> None:
        running = await fresh.start("echo begun; sleep 60")
        reader = EventReader(running.events())
        await reader.read_until(b"begun")
        await service_harness.lose(fresh.id)
        with pytest.raises((SandboxLost, LinkInterrupted)) as caught:
            await asyncio.wait_for(reader.read_to_end(), REPORTED_WITHIN + 7)
        if isinstance(caught.value, LinkInterrupted):
            # The link broke before the engine gave the reason. A second call, by exec id, gets it.
            assert (caught.value.retryable, caught.value.may_have_executed) == (True, True)
            error = await raises_within(running.status, SandboxLost, REPORTED_WITHIN)
        else:
            error = caught.value
        assert error.details["loss"]["generation"] == 1

    async def test_recreate(self, service_harness: ServiceHarness, client: AsyncClient) -> None:
        async with await client.create(env={"KEPT": "yes"}, metadata={"m": "1"}) as session:
            await session.files.write("/workspace/kept", b"x")
            before = await session.run("echo first")
            await lose(service_harness, session)
            await session.recreate()
            info = session.info
            assert (info.state, info.generation, info.metadata) == (SessionState.ACTIVE, 2, {"m": "1"})
            assert info.loss is not None
            assert info.loss.generation == 1
            result = await session.run("echo $KEPT")
            assert (result.output, result.generation) == ("yes\n", 2)
            assert KEPT_FILES in info.loss.kept
            assert await session.files.read("/workspace/kept") == b"x"
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
        async with deleted_afterwards(client.thread(thread)) as session:
            await lose(service_harness, session)
            (found,) = [found async for found in client.sessions(thread=thread)]
            assert (found.id, found.state) == (session.id, SessionState.LOST)

    async def test_thread_of_a_lost_session(
        self, service_harness: ServiceHarness, client: AsyncClient
    ) -> None:
        thread = unique()
        async with deleted_afterwards(client.thread(thread)) as session:
            await lose(service_harness, session)
            again = await client.thread(thread)
            assert (again.id, again.created, again.state) == (session.id, False, SessionState.LOST)
            with pytest.raises(SandboxLost):
                await client.run_in_thread(thread, "true")
            recreated = await client.thread(thread, recreate_lost=True)
            assert (recreated.id, recreated.state, recreated.generation) == (
                session.id,
                SessionState.ACTIVE,
                2,
            )
            assert recreated.info.loss is not None
            assert await ok(recreated, "echo goes on") == "goes on\n"

    async def test_run_in_a_lost_thread(self, service_harness: ServiceHarness, client: AsyncClient) -> None:
        thread = unique()
        async with deleted_afterwards(client.thread(thread)) as session:
            await lose(service_harness, session)
            result = await client.run_in_thread(thread, "echo anew", recreate_lost=True)
            assert (result.output, result.generation, result.session_id) == ("anew\n", 2, session.id)

    async def test_others_are_spared(
        self, service_harness: ServiceHarness, session: AsyncSession, fresh: AsyncSession
    ) -> None:
        await lose(service_harness, fresh)
        assert await ok(session, "echo alive") == "alive\n"


class SilenceCases(Cases):
    async def test_silent_sandbox_and_back(
        self, service_harness: ServiceHarness, fresh: AsyncSession
    ) -> None:
        """O1: every call ends, and the session is usable again when its sandbox answers."""

        async def wait_for_state(state: SessionState) -> None:
            async def reached() -> bool:
                return (await fresh.refresh()).state is state

            await eventually(reached, KNOWN_WITHIN, f"the session is {state}")

        if service_harness.freeze is None or service_harness.thaw is None:
            pytest.skip("sandboxes of this service cannot be made to stand still")
        clock = asyncio.get_running_loop().time
        await ok(fresh, "echo kept > f")
        await service_harness.freeze(fresh.id)
        try:
            began = clock()
            with pytest.raises(SandboxUnresponsive) as caught:
                await fresh.run("true", timeout_s=1)
            assert clock() - began < ENDS_WITHIN
            check_three_fields(caught.value)
            assert caught.value.retryable
            await wait_for_state(SessionState.UNRESPONSIVE)
            with pytest.raises(SandboxUnresponsive) as refused:
                await fresh.execs()
            assert not refused.value.may_have_executed
        finally:
            await service_harness.thaw(fresh.id)
        await wait_for_state(SessionState.ACTIVE)
        assert await ok(fresh, "cat f") == "kept\n"

    async def test_silent_sandbox_is_given_up_on_request(
        self, service_harness: ServiceHarness, fresh: AsyncSession
    ) -> None:
        async def silent() -> bool:
            return (await fresh.refresh()).state is SessionState.UNRESPONSIVE

        if service_harness.freeze is None:
            pytest.skip("sandboxes of this service cannot be made to stand still")
        await service_harness.freeze(fresh.id)
        with pytest.raises(SandboxUnresponsive):
            await fresh.run("true", timeout_s=1)
        await eventually(silent, KNOWN_WITHIN, "the session is unresponsive")
        await fresh.recreate()
        assert (fresh.generation, fresh.state) == (2, SessionState.ACTIVE)
        assert fresh.info.loss is not None
        assert await ok(fresh, "echo anew") == "anew\n"
