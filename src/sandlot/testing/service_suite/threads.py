"""Threads: one live session for each conversation, however many ask for it."""

from __future__ import annotations

import asyncio

import pytest

from sandlot.client.async_client import AsyncClient
from sandlot.domain.errors import InvalidRequest, SessionEnded
from sandlot.domain.session import EndReason
from sandlot.testing.service_suite.harness import Cases, ok, unique


class ThreadCases(Cases):
    async def test_made_once_and_found_again(self, client: AsyncClient) -> None:
        thread = unique()
        async with await client.thread(thread) as first:
            assert (first.thread, first.created) == (thread, True)
            await first.files.write("note", b"kept")
            second = await client.thread(thread)
            assert (second.id, second.created) == (first.id, False)
            assert await second.files.read("note") == b"kept"

    async def test_fifty_at_once_get_one_session(self, client: AsyncClient) -> None:
        thread = unique()
        opened = await asyncio.gather(*(client.thread(thread, metadata={"n": "1"}) for _ in range(50)))
        async with opened[0]:
            assert len({session.id for session in opened}) == 1
            assert sum(session.created for session in opened) == 1
            assert len({(session.info.created_at, session.info.sandbox_id) for session in opened}) == 1
            assert len([found async for found in client.sessions(thread=thread)]) == 1

    async def test_create_takes_a_thread_too(self, client: AsyncClient) -> None:
        thread = unique()
        async with await client.create(thread=thread) as first:
            again = await client.thread(thread)
            assert again.id == first.id

    async def test_threads_are_apart(self, client: AsyncClient) -> None:
        async with await client.thread(unique()) as one, await client.thread(unique()) as two:
            assert one.id != two.id
            await ok(one, "echo mine >f")
            assert not await two.files.exists("f")

    async def test_options_count_for_the_first(self, client: AsyncClient) -> None:
        thread = unique()
        async with await client.thread(thread, env={"WHO": "first"}, metadata={"n": "1"}) as session:
            again = await client.thread(thread, env={"WHO": "second"}, metadata={"n": "2"})
            assert again.info.metadata == {"n": "1"}
            assert await ok(again, "echo $WHO") == "first\n"
            assert session.id == again.id

    async def test_an_ended_thread_begins_anew(self, client: AsyncClient) -> None:
        thread = unique()
        first = await client.thread(thread)
        assert first.info.predecessor is None
        await first.delete()
        async with await client.thread(thread) as second:
            assert second.created
            assert second.id != first.id
            before = second.info.predecessor
            assert before is not None
            assert (before.id, before.reason) == (first.id, EndReason.DELETED)
            assert (await client.thread(thread)).info.predecessor == before
            with pytest.raises(SessionEnded):
                await client.get(first.id)

    @pytest.mark.parametrize("thread", ["a/b", "user:1@host#?&=%2F", "..", "~!$'()*+,;[]{}|\\^`<>\""])
    async def test_any_printable_name(self, client: AsyncClient, thread: str) -> None:
        name = thread + unique()
        async with await client.thread(name) as session:
            assert session.thread == name
            assert (await client.thread(name)).id == session.id
            assert (await client.run_in_thread(name, "echo $?")).session_id == session.id

    @pytest.mark.parametrize("thread", ["", "two words", "new\nline", "ü", "x" * 201])
    async def test_names_that_cannot_be(self, client: AsyncClient, thread: str) -> None:
        with pytest.raises(InvalidRequest):
            await client.thread(thread)

    async def test_run_in_thread(self, client: AsyncClient) -> None:
        thread = unique()
        first = await client.run_in_thread(thread, "echo one >f; cat f")
        try:
            assert (first.output, first.exit_code, first.generation) == ("one\n", 0, 1)
            second = await client.run_in_thread(thread, "cat f; exit 3")
            assert (second.output, second.exit_code) == ("one\n", 3)
            assert second.session_id == first.session_id
        finally:
            await (await client.get(first.session_id)).delete()

    async def test_run_in_thread_at_once(self, client: AsyncClient) -> None:
        thread = unique()
        results = await asyncio.gather(*(client.run_in_thread(thread, f"echo {i}") for i in range(10)))
        try:
            assert [result.output for result in results] == [f"{i}\n" for i in range(10)]
            assert len({result.session_id for result in results}) == 1
        finally:
            await (await client.get(results[0].session_id)).delete()

    async def test_run_in_thread_with_options(self, client: AsyncClient) -> None:
        thread = unique()
        result = await client.run_in_thread(thread, "cat; pwd", stdin=b"in:", cwd="/tmp", timeout_s=10)
        await (await client.get(result.session_id)).delete()
        assert result.output == "in:/tmp\n"
