"""Sessions as contexts (U17), and what the sync classes say of themselves (U11)."""

from __future__ import annotations

import asyncio
import inspect
import pydoc

import pytest

from sandlot import AsyncClient, Client, Exec, Files, Session, Shell
from sandlot.domain.errors import SessionEnded
from sandlot.testing.fake import FakeService


class TestU17:
    async def test_create_is_entered_without_an_await(self) -> None:
        client = AsyncClient(service=FakeService())
        async with client.create(env={"A": "b"}) as session:
            assert (await session.run("echo $A")).output == "b\n"
        with pytest.raises(SessionEnded):
            await session.refresh()
        async with await client.create() as session:  # as it had to be written before
            pass
        with pytest.raises(SessionEnded):
            await session.refresh()

    async def test_it_is_a_coroutine_to_whoever_wants_one(self) -> None:
        client = AsyncClient(service=FakeService())
        task = asyncio.create_task(client.create())
        first, second = await asyncio.gather(client.create(), client.thread("t"))
        assert len({(await task).id, first.id, second.id}) == 3
        assert (await asyncio.wait_for(client.thread("t"), 5)).id == second.id

    async def test_a_threads_session_stays(self) -> None:
        client = AsyncClient(service=FakeService())
        async with client.thread("t") as session:
            pass
        async with await client.get(session.id) as again:
            assert again.created is False
        assert (await client.thread("t")).id == session.id

    def test_without_await(self) -> None:
        with Client(service=FakeService()) as client:
            with client.thread("t") as session:
                pass
            assert client.thread("t").id == session.id
            with client.get(session.id), client.create() as own:
                pass
            assert session.refresh().id == session.id
            with pytest.raises(SessionEnded):
                own.refresh()

    async def test_an_error_on_the_way_in_is_raised(self) -> None:
        fake = FakeService()
        await fake.close()
        with pytest.raises(Exception, match="closed"):
            async with AsyncClient(service=fake).create():
                pass


class TestU11:
    def test_what_is_printed(self) -> None:
        with Client(service=FakeService()) as client, client.create() as session:
            assert repr(session).startswith(f"<Session {session.id} active")
            assert repr(client) == "<Client local>"
            assert repr(session.shell()) == f"<Shell 'main' of {session.id}>"
            assert repr(session.start("true")).startswith("<Exec exec_")
            assert repr(session.files) == "<Files>"
        with Client("http://here:1") as client:
            assert repr(client) == "<Client http://here:1>"

    @pytest.mark.parametrize("kind", [Client, Session, Exec, Shell, Files])
    def test_help_is_of_the_class_that_was_asked_about(self, kind: type) -> None:
        for name in vars(kind):
            if not name.startswith("_") and hasattr(getattr(kind, name), "__wrapped__"):
                text = pydoc.plain(pydoc.render_doc(getattr(kind, name)))
                assert "Async" not in text.replace("AsyncIterable", ""), text
                assert "async with" not in text, text
                assert f"{kind.__name__}.{name}" == getattr(kind, name).__qualname__

    def test_signatures(self) -> None:
        assert inspect.signature(Client.create).return_annotation == "Session"
        assert inspect.signature(Session.stream).return_annotation == "Iterator[ExecEvent]"
        assert Client.create.__qualname__ == "Client.create"
