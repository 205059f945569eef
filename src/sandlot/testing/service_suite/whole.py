"""The service itself: its errors, its catalogue, its health."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from sandlot.client.async_client import AsyncClient
from sandlot.client.async_session import AsyncSession
from sandlot.domain.capacity.readiness import ReadinessState
from sandlot.domain.errors import (
    Conflict,
    FileProblem,
    InvalidRequest,
    NotFound,
    SandlotError,
    SessionEnded,
)
from sandlot.domain.execution import Verdict
from sandlot.domain.ids import new_exec_id, new_session_id
from sandlot.domain.session import DEFAULT_ENVIRONMENT
from sandlot.testing.eventually import eventually
from sandlot.testing.service_suite.harness import (
    Cases,
    ServiceHarness,
    check_three_fields,
    deleted_afterwards,
    unique,
)


def check_refusal(error: SandlotError) -> None:
    """Checks for "not found" or "invalid", which are both right for a malformed id.

    No other error is: the session has not ended.
    """
    assert type(error) in (NotFound, InvalidRequest)
    check_three_fields(error)
    assert (error.retryable, error.may_have_executed) == (False, False)


class ErrorCases(Cases):
    async def test_unknown_session(self, client: AsyncClient) -> None:
        with pytest.raises(NotFound) as caught:
            await client.get(new_session_id())
        assert type(caught.value) is NotFound
        check_three_fields(caught.value)

    @pytest.mark.parametrize(
        "session_id", ["x", "ses_", "../..", "ses_" + "g" * 32, "x" * 1000, "a b", "%2e%2e"]
    )
    async def test_malformed_session_id(self, client: AsyncClient, session_id: str) -> None:
        with pytest.raises(NotFound) as caught:
            await client.get(session_id)
        assert type(caught.value) is NotFound

    @pytest.mark.parametrize("exec_id", ["../..", "a b", "x" * 65, "ü"])
    async def test_malformed_exec_id(self, session: AsyncSession, exec_id: str) -> None:
        with pytest.raises((NotFound, InvalidRequest)) as caught:
            await (await session.exec(exec_id)).status()
        check_refusal(caught.value)

    @pytest.mark.parametrize("name", ["../..", "a b", "x" * 65])
    async def test_malformed_shell_name(self, session: AsyncSession, name: str) -> None:
        with pytest.raises((NotFound, InvalidRequest)) as caught:
            await session.shell(name).close()
        check_refusal(caught.value)

    @pytest.mark.parametrize(
        ("kind", "call"),
        [
            (InvalidRequest, lambda client, session: session.run("true", timeout_s=-1)),
            (InvalidRequest, lambda client, session: client.thread("")),
            (NotFound, lambda client, session: session.shell("none").close()),
            (Conflict, lambda client, session: session.recreate()),
            (FileProblem, lambda client, session: session.files.read("none")),
        ],
        ids=["exec", "thread", "shell", "conflict", "file"],
    )
    async def test_three_fields_on_each(
        self,
        client: AsyncClient,
        session: AsyncSession,
        kind: type[SandlotError],
        call: Callable[[AsyncClient, AsyncSession], Awaitable[object]],
    ) -> None:
        with pytest.raises(kind) as caught:
            await call(client, session)
        check_three_fields(caught.value)
        assert not caught.value.retryable
        assert not caught.value.may_have_executed

    async def test_ended_is_not_unknown(self, client: AsyncClient) -> None:
        session = await client.create()
        await session.delete()
        with pytest.raises(SessionEnded) as caught:
            await session.run("true")
        check_three_fields(caught.value)
        assert set(caught.value.details) >= {"reason", "ended_at"}
        assert session.id in caught.value.message

    async def test_delete_of_what_never_was(self, service_harness: ServiceHarness) -> None:
        if service_harness.service is None:
            pytest.skip("this client's service lives on an event loop of its own")
        with pytest.raises(NotFound):
            await service_harness.service.delete_session(new_session_id())


class WholeCases(Cases):
    async def test_catalogue(self, client: AsyncClient) -> None:
        catalogue = await client.catalogue()
        environment = next(e for e in catalogue.environments if e.name == DEFAULT_ENVIRONMENT)
        assert environment.image
        assert environment.limits.memory_bytes > 0

    async def test_catalogue_says_how_far_the_server_is(
        self, client: AsyncClient, session: AsyncSession
    ) -> None:
        """A session of it exists, so its image does. A fleet hears of that with the next report."""

        async def known() -> bool:
            catalogue = await client.catalogue()
            environment = next(e for e in catalogue.environments if e.name == session.environment)
            return any(one.server and one.state is ReadinessState.READY for one in environment.readiness)

        await eventually(known, 20, "the environment is ready somewhere")

    async def test_health(self, client: AsyncClient, session: AsyncSession) -> None:
        health = await client.health()
        assert health.ready
        assert health.worker_id
        assert health.version
        assert health.active_sessions >= 1
        assert DEFAULT_ENVIRONMENT in health.pools

    async def test_health_counts_sessions(self, client: AsyncClient) -> None:
        before = (await client.health()).active_sessions
        async with deleted_afterwards(client.thread(unique())):
            assert (await client.health()).active_sessions == before + 1
        assert (await client.health()).active_sessions == before

    async def test_health_counts_execs(self, client: AsyncClient, fresh: AsyncSession) -> None:
        # Calls of earlier cases may still end. So the lowest count is the one without this exec.
        lowest = (await client.health()).calls_under_way
        exec_id = new_exec_id()
        running = asyncio.create_task(fresh.run("sleep 60", exec_id=exec_id))

        async def counted() -> bool:
            nonlocal lowest
            now = (await client.health()).calls_under_way
            lowest = min(lowest, now)
            return now > lowest

        await eventually(counted, 20, "the exec is counted")

        async def killed() -> bool:
            try:
                await (await fresh.exec(exec_id)).kill()
            except NotFound:  # health counts the call before the service knows its exec
                return False
            return True

        await eventually(killed, 20, "the exec is known")
        assert (await running).verdict is Verdict.KILLED
        assert (await client.health()).calls_under_way <= lowest
