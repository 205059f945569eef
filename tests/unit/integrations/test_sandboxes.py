"""Threads of any name, from plain code and from several loops, with one sandbox each."""

from __future__ import annotations

import asyncio
import threading

import pytest

from sandlot import AsyncClient, AsyncSession, Client
from sandlot.domain.errors import InvalidRequest
from sandlot.domain.ids import is_thread
from sandlot.integrations.sandboxes import Sandboxes
from sandlot.testing.fake import FakeService


async def session_id(session: AsyncSession) -> str:
    return session.id


@pytest.mark.parametrize("thread", ["a", "user 7", "Gespräch", "x" * 500, "\ud800", " ", "a/b"])
def test_any_name_becomes_a_thread(thread: str) -> None:
    with Client(service=FakeService()) as client:
        key = Sandboxes(client).thread_key(thread)
    assert is_thread(key)
    assert (key == thread) == is_thread(thread)


def test_names_stay_apart() -> None:
    with Client(service=FakeService()) as client:
        shared, own = Sandboxes(client), Sandboxes(client, name="researcher")
        keys = {
            shared.thread_key("a b"),
            shared.thread_key("a  b"),
            own.thread_key("a b"),
            own.thread_key("ab"),
        }
        assert len(keys) == 4
        assert shared.run("t", session_id) == shared.run("t", session_id)
        assert shared.run("t", session_id) != own.run("t", session_id)


def test_what_only_looks_the_same_is_kept_apart() -> None:
    with Client(service=FakeService()) as client:
        keys = {
            Sandboxes(client, name="b").thread_key("x/a"),
            Sandboxes(client, name="a/b").thread_key("x"),
            Sandboxes(client, name="a").thread_key("x"),
            Sandboxes(client).thread_key("x/a"),
        }
        assert len(keys) == 4


def test_what_cannot_be_is_refused_when_it_is_built() -> None:
    with pytest.raises(InvalidRequest, match="AsyncClient"):
        Sandboxes("http://localhost:8000")  # type: ignore[arg-type]
    with Client(service=FakeService()) as client, pytest.raises(InvalidRequest, match="idempotency_key"):
        Sandboxes(client, idempotency_key="k")


def test_one_client_from_threads_and_from_several_loops() -> None:
    with Client(service=FakeService()) as client:
        sandboxes = Sandboxes(client)
        found: set[str] = set()

        def in_a_loop() -> None:
            found.add(asyncio.run(sandboxes.arun("t", session_id)))

        threads = [threading.Thread(target=in_a_loop) for _ in range(4)]
        for thread in threads:
            thread.start()
        found.add(sandboxes.run("t", session_id))
        for thread in threads:
            thread.join()
        assert len(found) == 1


async def test_an_async_client_is_used_on_the_callers_loop_alone() -> None:
    async with AsyncClient(service=FakeService()) as client:
        sandboxes = Sandboxes(client)
        assert await sandboxes.arun("t", session_id) == await sandboxes.arun("t", session_id)
        with pytest.raises(InvalidRequest, match=r"need a sandlot\.Client"):
            sandboxes.run("t", session_id)


async def test_cancelling_the_caller_cancels_the_work() -> None:
    with Client(service=FakeService()) as client:
        sandboxes = Sandboxes(client)
        begun, ended = threading.Event(), threading.Event()

        async def work(_: AsyncSession) -> None:
            begun.set()
            try:
                await asyncio.sleep(60)
            finally:
                ended.set()

        call = asyncio.create_task(sandboxes.arun("t", work))
        assert await asyncio.to_thread(begun.wait, 10)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert await asyncio.to_thread(ended.wait, 10)
