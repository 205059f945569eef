"""Tenants: nothing of one caller is seen, guessed, counted or changed by another one's."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio

from sandlot.client.async_client import AsyncClient
from sandlot.client.async_session import AsyncSession
from sandlot.domain.computer import Execution
from sandlot.domain.errors import NotFound, SandlotError, SessionEnded
from sandlot.domain.execution import ExecRequest
from sandlot.domain.ids import new_session_id
from sandlot.domain.network.ports import ExposePort
from sandlot.domain.service import SandboxService
from sandlot.domain.session import SessionChange
from sandlot.testing.service_suite.harness import (
    ONE_CALLER,
    Cases,
    ServiceHarness,
    deleted_afterwards,
    ok,
    unique,
)

Call = Callable[[SandboxService, str], Awaitable[object]]


async def _detached(starting: Awaitable[Execution]) -> None:
    await (await starting).detach()


async def _read(service: SandboxService, session_id: str) -> None:
    async for _ in service.files(session_id).read("/etc/hostname"):
        break


async def _watch(service: SandboxService, session_id: str) -> None:
    async with service.files(session_id).watch("/workspace"):
        pass


async def _archive(service: SandboxService, session_id: str) -> None:
    async for _ in service.files(session_id).read_archive("/workspace"):
        break


async def _pieces() -> AsyncIterator[bytes]:
    yield bytes(1024)  # an empty tar archive


EXEC_ID = "of-somebody-else"
# Every call of the contract that names a session.
CALLS: dict[str, Call] = {
    "get_session": lambda service, id: service.get_session(id),
    "update_session": lambda service, id: service.update_session(id, SessionChange(metadata={"by": "other"})),
    "recreate_session": lambda service, id: service.recreate_session(id),
    "delete_session": lambda service, id: service.delete_session(id),
    "execute": lambda service, id: service.execute(id, ExecRequest(command="echo not mine >mark")),
    "start_exec": lambda service, id: _detached(service.start_exec(id, ExecRequest(command="true"))),
    "attach_exec": lambda service, id: _detached(service.attach_exec(id, EXEC_ID)),
    "get_exec": lambda service, id: service.get_exec(id, EXEC_ID),
    "list_execs": lambda service, id: service.list_execs(id),
    "signal_exec": lambda service, id: service.signal_exec(id, EXEC_ID, 15),
    "kill_exec": lambda service, id: service.kill_exec(id, EXEC_ID),
    "resize_exec": lambda service, id: service.resize_exec(id, EXEC_ID, rows=9, cols=9),
    "list_shells": lambda service, id: service.list_shells(id),
    "close_shell": lambda service, id: service.close_shell(id, "main"),
    "get_usage": lambda service, id: service.get_usage(id),
    "get_workspace": lambda service, id: service.get_workspace(id),
    "hibernate_session": lambda service, id: service.hibernate_session(id),
    "connect": lambda service, id: service.connect(id, 8000),
    "expose_port": lambda service, id: service.expose_port(id, ExposePort(8000)),
    "unexpose_port": lambda service, id: service.unexpose_port(id, 8000),
    "list_exposed": lambda service, id: service.list_exposed(id),
    "keep_artifacts": lambda service, id: service.keep_artifacts(id, ["kept"]),
    "files.stat": lambda service, id: service.files(id).stat("/"),
    "files.list": lambda service, id: service.files(id).list("/"),
    "files.walk": lambda service, id: service.files(id).walk("/workspace"),
    "files.read": _read,
    "files.read_bytes": lambda service, id: service.files(id).read_bytes("/etc/hostname"),
    "files.write": lambda service, id: service.files(id).write("mark", b"not mine"),
    "files.mkdir": lambda service, id: service.files(id).mkdir("mark"),
    "files.move": lambda service, id: service.files(id).move("kept", "mark"),
    "files.remove": lambda service, id: service.files(id).remove("kept"),
    "files.search": lambda service, id: service.files(id).search("/workspace", "kept"),
    "files.watch": _watch,
    "files.read_archive": _archive,
    "files.write_archive": lambda service, id: service.files(id).write_archive("/workspace", _pieces()),
}


async def _refused(call: Call, service: SandboxService, session_id: str) -> SandlotError:
    with pytest.raises(SandlotError) as refused:
        await call(service, session_id)
    return refused.value


class TenantCases(Cases):
    @pytest_asyncio.fixture(loop_scope="session", scope="class")
    @classmethod
    async def owned(cls, service_harness: ServiceHarness) -> AsyncIterator[AsyncSession]:
        """A session with a file and an exec, which the cases try to reach as somebody else."""
        if service_harness.stranger is None:
            pytest.skip(ONE_CALLER)
        session = await service_harness.client.create(metadata={"by": "owner"})
        await session.files.write("kept", b"kept")
        await session.run("true", exec_id=EXEC_ID)
        yield session
        await session.delete()

    @pytest.mark.parametrize("name", CALLS)
    async def test_a_foreign_session_is_not_found(
        self, stranger: AsyncClient, owned: AsyncSession, name: str
    ) -> None:
        """The answer is that for a session that never was, so that ids cannot be probed."""
        service = stranger.service
        unknown_id = new_session_id()
        foreign = await _refused(CALLS[name], service, owned.id)
        unknown = await _refused(CALLS[name], service, unknown_id)
        assert type(foreign) is type(unknown) is NotFound, foreign
        assert foreign.message.replace(owned.id, "ID") == unknown.message.replace(unknown_id, "ID")
        assert not foreign.may_have_executed
        assert (await owned.files.read("kept"), await owned.files.exists("mark")) == (b"kept", False)
        assert (await owned.refresh()).info.metadata == {"by": "owner"}

    async def test_neither_is_one_that_was_lost_or_has_ended(
        self, client: AsyncClient, stranger: AsyncClient, service_harness: ServiceHarness
    ) -> None:
        lost, ended = await client.create(), await client.create()
        await service_harness.lose(lost.id)
        await ended.delete()
        with pytest.raises(SessionEnded):
            await client.get(ended.id)
        for session in (lost, ended):
            for name in ("get_session", "execute", "recreate_session", "delete_session"):
                refused = await _refused(CALLS[name], stranger.service, session.id)
                assert type(refused) is NotFound, (name, refused)
        await lost.delete()

    async def test_each_has_its_own_threads(self, client: AsyncClient, stranger: AsyncClient) -> None:
        thread = unique()
        both = await asyncio.gather(*(owner.thread(thread) for owner in (client, stranger) for _ in range(5)))
        ids = [session.id for session in both]
        assert len(set(ids[:5])) == len(set(ids[5:])) == 1
        assert ids[0] != ids[5]
        async with (
            deleted_afterwards(client.thread(thread)) as mine,
            deleted_afterwards(stranger.thread(thread)) as theirs,
        ):
            await ok(mine, "echo mine >note")
            assert not await theirs.files.exists("note")
            assert [found.id async for found in client.sessions(thread=thread)] == [mine.id]
            assert [found.id async for found in stranger.sessions(thread=thread)] == [theirs.id]

    async def test_a_new_thread_has_no_foreign_predecessor(
        self, client: AsyncClient, stranger: AsyncClient
    ) -> None:
        thread = unique()
        await (await client.thread(thread)).delete()
        async with deleted_afterwards(stranger.thread(thread)) as theirs:
            assert theirs.info.predecessor is None

    async def test_each_has_its_own_idempotency_keys(
        self, client: AsyncClient, stranger: AsyncClient
    ) -> None:
        key = unique("key")
        async with (
            await client.create(idempotency_key=key, metadata={"a": "1"}) as mine,
            await stranger.create(idempotency_key=key, metadata={"b": "2"}) as theirs,
        ):
            assert mine.id != theirs.id
            assert (await client.create(idempotency_key=key, metadata={"a": "1"})).id == mine.id

    async def test_lists_and_counts_are_apart(
        self, client: AsyncClient, stranger: AsyncClient, service_harness: ServiceHarness
    ) -> None:
        async with contextlib.AsyncExitStack() as stack:
            mine = [await stack.enter_async_context(await client.create()) for _ in range(3)]
            theirs = await stack.enter_async_context(await stranger.create())
            ids = {session.id for session in mine}
            listed = {found.id async for found in stranger.sessions()}
            assert theirs.id in listed
            assert not ids & listed
            assert theirs.id not in {found.id async for found in client.sessions()}
            if service_harness.service is not None:
                cursor = (await service_harness.service.list_sessions(limit=1)).next
                page = await stranger.service.list_sessions(after=cursor)
                assert not ids & {session.id for session in page.sessions}
            assert (await stranger.health()).active_sessions == len(listed)
