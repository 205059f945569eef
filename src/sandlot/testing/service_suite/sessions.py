"""Sessions: how clients create, find, change and end them."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from sandlot.client.async_client import AsyncClient
from sandlot.client.async_session import AsyncSession
from sandlot.domain.capacity.limits import LimitChange
from sandlot.domain.errors import (
    Conflict,
    IdempotencyMismatch,
    InvalidRequest,
    NotFound,
    SessionEnded,
)
from sandlot.domain.ids import is_sandbox_id, is_session_id
from sandlot.domain.session import DEFAULT_ENVIRONMENT, NEVER, EndReason, SessionState
from sandlot.testing.eventually import eventually
from sandlot.testing.service_suite.harness import Cases, ServiceHarness, ok, unique


class SessionCases(Cases):
    async def test_a_new_session(self, session: AsyncSession) -> None:
        info = session.info
        assert is_session_id(session.id)
        assert (session.state, session.generation, session.created) == (SessionState.ACTIVE, 1, True)
        assert (session.thread, session.environment) == (None, DEFAULT_ENVIRONMENT)
        assert is_sandbox_id(info.sandbox_id or "")
        assert info.created_at <= info.last_active_at
        assert info.expires_at is not None
        assert info.expires_at > info.created_at
        assert (info.loss, info.end_reason, info.ended_at) == (None, None, None)

    async def test_named_environment(self, client: AsyncClient) -> None:
        async with await client.create(DEFAULT_ENVIRONMENT) as session:
            assert session.environment == DEFAULT_ENVIRONMENT
            assert await ok(session, "whoami") == "sandboxuser\n"

    async def test_unknown_environment(self, client: AsyncClient) -> None:
        with pytest.raises(InvalidRequest, match="no-such-environment"):
            await client.create("no-such-environment")

    async def test_env_reaches_every_command(self, client: AsyncClient) -> None:
        async with await client.create(env={"TOKEN": "s3cret value", "OTHER": "x"}) as session:
            assert await ok(session, 'echo "$TOKEN"') == "s3cret value\n"
            assert await ok(session, "echo $TOKEN $OTHER", env={"OTHER": "own"}) == "s3cret value own\n"
            assert await ok(session, "echo $OTHER", shell="s") == "x\n"

    @pytest.mark.parametrize("given", [{"env": {"A": 1}}, {"env": {1: "a"}}, {"metadata": {"n": 1}}])
    async def test_what_is_not_text_is_refused(
        self, client: AsyncClient, session: AsyncSession, given: dict[str, Any]
    ) -> None:
        """U11: a number raised a ``TypeError`` deep inside the client."""
        with pytest.raises(InvalidRequest, match=r"must be a string, .* int"):
            await client.create(**given)
        if "env" in given:
            with pytest.raises(InvalidRequest, match=r"must be a string, .* int"):
                await session.run("true", **given)

    async def test_limits_of_its_own(self, client: AsyncClient) -> None:
        limits = LimitChange(pids=100, memory_bytes=300 * 1024 * 1024)
        async with await client.create(limits=limits) as session:
            assert session.info.limits.pids == 100
            assert session.info.limits.memory_bytes == 300 * 1024 * 1024
            assert await ok(session, "echo works") == "works\n"
            assert (await client.get(session.id)).info.limits == session.info.limits

    async def test_limits_beyond_what_the_server_allows(self, client: AsyncClient) -> None:
        """S3: a limit can be well-formed and still exceed what a session may have."""
        for asked in (LimitChange(memory_bytes=1 << 40), LimitChange(pids=65_536), LimitChange(cpus=1024)):
            with pytest.raises(InvalidRequest, match="exceeds the maximum"):
                await client.create(limits=asked)

    async def test_limits_out_of_range(self, client: AsyncClient) -> None:
        with pytest.raises(InvalidRequest, match="pids"):
            await client.create(limits=LimitChange(pids=1))

    async def test_metadata(self, client: AsyncClient) -> None:
        metadata = {"user": "ünï", "run": "7"}
        async with await client.create(metadata=metadata) as session:
            assert session.info.metadata == metadata
            assert (await client.get(session.id)).info.metadata == metadata

    async def test_metadata_is_bounded(self, client: AsyncClient) -> None:
        with pytest.raises(InvalidRequest):
            await client.create(metadata={"big": "x" * 20_000})
        with pytest.raises(InvalidRequest):
            await client.create(metadata={str(i): "x" for i in range(65)})

    async def test_timeouts_of_its_own(self, client: AsyncClient) -> None:
        async with await client.create(idle_timeout_s=77.5, lifetime_s=99) as session:
            info = session.info
            assert (info.idle_timeout_s, info.lifetime_s) == (77.5, 99)
            assert info.expires_at is not None
            assert info.expires_at <= info.last_active_at + 77.5

    @pytest.mark.parametrize("timeout", [0, -1, 1e12])
    async def test_timeouts_out_of_range(self, client: AsyncClient, timeout: float) -> None:
        with pytest.raises(InvalidRequest):
            await client.create(idle_timeout_s=timeout)
        with pytest.raises(InvalidRequest):
            await client.create(lifetime_s=timeout)

    async def test_never(self, service_harness: ServiceHarness) -> None:
        if not service_harness.never_allowed:
            with pytest.raises(InvalidRequest):
                await service_harness.client.create(idle_timeout_s=NEVER, lifetime_s=NEVER)
            return
        async with await service_harness.client.create(idle_timeout_s=NEVER, lifetime_s=NEVER) as session:
            assert (session.info.idle_timeout_s, session.info.lifetime_s) == (None, None)
            assert session.info.expires_at is None

    async def test_get(self, client: AsyncClient, session: AsyncSession) -> None:
        found = await client.get(session.id)
        assert (found.id, found.info.sandbox_id) == (session.id, session.info.sandbox_id)
        assert not found.created
        assert await ok(found, "echo same") == "same\n"

    async def test_refresh(self, session: AsyncSession) -> None:
        before = session.info.last_active_at
        await asyncio.sleep(0.05)
        await ok(session, "true")
        refreshed = await session.refresh()
        assert refreshed.info.last_active_at > before
        assert session.info == refreshed.info

    async def test_sessions_are_listed(self, client: AsyncClient, session: AsyncSession) -> None:
        assert session.id in [found.id async for found in client.sessions()]

    async def test_listed_oldest_first_and_by_thread(self, client: AsyncClient) -> None:
        threads = [unique("list") for _ in range(3)]
        made = [await client.thread(thread) for thread in threads]
        try:
            listed = [found.id async for found in client.sessions()]
            places = [listed.index(session.id) for session in made]
            assert places == sorted(places)
            assert [found.id async for found in client.sessions(thread=threads[1])] == [made[1].id]
            assert [found.id async for found in client.sessions(thread=unique())] == []
        finally:
            for session in made:
                await session.delete()

    async def test_pages(self, service_harness: ServiceHarness) -> None:
        service = service_harness.service
        if service is None:
            pytest.skip("this client's service lives on an event loop of its own")
        made = [await service_harness.client.create() for _ in range(3)]
        try:
            whole = [session.id for session in (await service.list_sessions()).sessions]
            paged: list[str] = []
            after: str | None = None
            while True:
                page = await service.list_sessions(after=after, limit=2)
                assert len(page.sessions) <= 2
                paged += [session.id for session in page.sessions]
                after = page.next
                if after is None:
                    break
            assert paged == whole
            with pytest.raises(InvalidRequest):
                await service.list_sessions(limit=0)
            for garbage in ("x", made[0].id, "0000000000000.000000-", "\ufffd"):
                with pytest.raises(InvalidRequest, match="is not a page cursor"):
                    await service.list_sessions(after=garbage)
        finally:
            for session in made:
                await session.delete()

    async def test_update_metadata_alone(self, fresh: AsyncSession) -> None:
        before = fresh.info
        await fresh.update(metadata={"a": "1"})
        assert fresh.info.metadata == {"a": "1"}
        assert (fresh.info.idle_timeout_s, fresh.info.lifetime_s) == (
            before.idle_timeout_s,
            before.lifetime_s,
        )
        await fresh.update(metadata={"b": "2"})
        assert (await fresh.refresh()).info.metadata == {"b": "2"}

    async def test_update_timeouts_alone(self, fresh: AsyncSession) -> None:
        await fresh.update(metadata={"kept": "yes"})
        await fresh.update(idle_timeout_s=500)
        await fresh.update(lifetime_s=700)
        info = (await fresh.refresh()).info
        assert (info.idle_timeout_s, info.lifetime_s, info.metadata) == (500, 700, {"kept": "yes"})

    async def test_update_out_of_range(self, session: AsyncSession) -> None:
        with pytest.raises(InvalidRequest):
            await session.update(lifetime_s=-5)
        with pytest.raises(InvalidRequest):
            await session.update(metadata={"big": "x" * 20_000})

    async def test_extend_counts_from_now(self, fresh: AsyncSession) -> None:
        await fresh.update(lifetime_s=30)
        await fresh.extend(5000)
        info = (await fresh.refresh()).info
        assert info.lifetime_s is not None
        assert 5000 <= info.lifetime_s < 5060

    async def test_extend_is_not_cut_short_by_the_idle_timeout(self, fresh: AsyncSession) -> None:
        """U10: after `sessions extend ID 2h`, the session still ended in 30 minutes."""
        await fresh.update(idle_timeout_s=60, lifetime_s=120)
        await fresh.extend(7200)
        expires_at = (await fresh.refresh()).info.expires_at
        assert expires_at is not None
        assert 7100 < expires_at - time.time() < 7260
        await fresh.update(idle_timeout_s=9000)
        await fresh.extend(60)
        assert fresh.info.idle_timeout_s == 9000

    async def test_delete_is_told_afterwards(self, client: AsyncClient) -> None:
        session = await client.create()
        await session.delete()
        with pytest.raises(SessionEnded) as caught:
            await client.get(session.id)
        assert caught.value.details["reason"] == EndReason.DELETED
        assert session.id not in [found.id async for found in client.sessions()]

    async def test_delete_twice(self, client: AsyncClient) -> None:
        session = await client.create()
        await asyncio.gather(session.delete(), session.delete())
        await session.delete()

    async def test_everything_refuses_an_ended_session(self, client: AsyncClient) -> None:
        session = await client.create()
        await session.delete()
        for call in (
            session.run("true"),
            session.start("true"),
            session.execs(),
            session.shells(),
            session.files.read("f"),
            session.files.write("f", b"x"),
            session.update(metadata={}),
            session.recreate(),
            session.refresh(),
        ):
            with pytest.raises(SessionEnded):
                await call

    async def test_delete_ends_what_runs(self, client: AsyncClient) -> None:
        session = await client.create()
        running = asyncio.create_task(session.run("echo x >begun; sleep 60"))

        async def begun() -> bool:
            return await session.files.exists("begun")

        await eventually(begun, 20, "the command runs")
        await session.delete()
        with pytest.raises(SessionEnded) as caught:
            await asyncio.wait_for(running, 30)
        assert caught.value.details["reason"] == EndReason.DELETED
        assert caught.value.may_have_executed

    async def test_context_manager_deletes(self, client: AsyncClient) -> None:
        async with await client.create() as session:
            await ok(session, "true")
        with pytest.raises(SessionEnded):
            await client.get(session.id)

    async def test_recreate_needs_a_loss(self, session: AsyncSession) -> None:
        with pytest.raises(Conflict):
            await session.recreate()

    async def test_sessions_do_not_share(self, client: AsyncClient, session: AsyncSession) -> None:
        async with await client.create() as other:
            await session.files.write("private", b"mine")
            assert not await other.files.exists("private")
            with pytest.raises(NotFound):
                await (await other.exec((await session.run("true")).exec_id)).status()


class IdempotencyCases(Cases):
    async def test_same_key_same_session(self, client: AsyncClient) -> None:
        key = unique("key")
        first = await client.create(metadata={"a": "1"}, idempotency_key=key)
        async with first:
            again = await client.create(metadata={"a": "1"}, idempotency_key=key)
            assert (again.id, again.created, first.created) == (first.id, False, True)

    async def test_same_key_at_once(self, client: AsyncClient) -> None:
        key = unique("key")
        made = await asyncio.gather(*(client.create(idempotency_key=key) for _ in range(10)))
        async with made[0]:
            assert len({session.id for session in made}) == 1
            assert sum(session.created for session in made) == 1

    async def test_same_key_for_another_request(self, client: AsyncClient) -> None:
        key = unique("key")
        async with await client.create(env={"A": "1"}, idempotency_key=key):
            with pytest.raises(IdempotencyMismatch):
                await client.create(env={"A": "2"}, idempotency_key=key)

    async def test_other_key_other_session(self, client: AsyncClient) -> None:
        async with (
            await client.create(idempotency_key=unique()) as one,
            await client.create(idempotency_key=unique()) as two,
        ):
            assert one.id != two.id

    async def test_too_long_a_key(self, client: AsyncClient) -> None:
        with pytest.raises(InvalidRequest):
            await client.create(idempotency_key="k" * 201)
