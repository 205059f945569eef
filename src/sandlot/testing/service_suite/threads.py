"""Threads: one live session for each conversation, however many callers ask at once."""

from __future__ import annotations

import asyncio
import hashlib

import pytest

from sandlot.client.async_client import AsyncClient
from sandlot.domain.capacity.limits import LimitChange
from sandlot.domain.errors import InvalidRequest, SessionEnded, ThreadDiffers
from sandlot.domain.session import EndReason
from sandlot.testing.service_suite.harness import Cases, deleted_afterwards, ok, unique


class ThreadCases(Cases):
    async def test_made_once_and_found_again(self, client: AsyncClient) -> None:
        thread = unique()
        async with deleted_afterwards(client.thread(thread)) as first:
            assert (first.thread, first.created) == (thread, True)
            await first.files.write("note", b"kept")
            second = await client.thread(thread)
            assert (second.id, second.created) == (first.id, False)
            assert await second.files.read("note") == b"kept"

    async def test_fifty_at_once_get_one_session(self, client: AsyncClient) -> None:
        thread = unique()
        opened = await asyncio.gather(*(client.thread(thread, metadata={"n": "1"}) for _ in range(50)))
        async with deleted_afterwards(client.thread(thread)):
            assert len({session.id for session in opened}) == 1
            assert sum(session.created for session in opened) == 1
            assert len({(session.info.created_at, session.info.sandbox_id) for session in opened}) == 1
            assert len([found async for found in client.sessions(thread=thread)]) == 1

    async def test_create_takes_a_thread_too(self, client: AsyncClient) -> None:
        thread = unique()
        async with deleted_afterwards(client.create(thread=thread)) as first:
            again = await client.thread(thread)
            assert again.id == first.id

    async def test_its_context_leaves_it_to_the_conversation(self, client: AsyncClient) -> None:
        """U17: leaving ``with client.thread(…)`` deleted the session that the next turn needed."""
        thread = unique()
        async with client.thread(thread) as first:
            await first.files.write("note", b"kept")
        async with client.create(thread=thread) as second:
            assert (second.id, await second.files.read("note")) == (first.id, b"kept")
        async with await client.get(first.id):
            pass
        async with deleted_afterwards(client.thread(thread)) as third:
            assert third.id == first.id

    async def test_threads_are_apart(self, client: AsyncClient) -> None:
        async with (
            deleted_afterwards(client.thread(unique())) as one,
            deleted_afterwards(client.thread(unique())) as two,
        ):
            assert one.id != two.id
            await ok(one, "echo mine >f")
            assert not await two.files.exists("f")

    async def test_other_options_than_the_session_has(self, client: AsyncClient) -> None:
        """U2: the service silently ignored the other options."""
        thread = unique()
        limits = LimitChange(pids=64)
        async with deleted_afterwards(
            client.create(thread=thread, env={"WHO": "a secret"}, limits=limits)
        ) as session:
            with pytest.raises(ThreadDiffers, match="its variables differ in ADDED, WHO") as refused:
                await client.thread(thread, env={"WHO": "second", "ADDED": "x"})
            assert "secret" not in refused.value.message
            assert refused.value.details["different"] == ["env"]
            with pytest.raises(ThreadDiffers, match="its pids is 64, not 65"):
                await client.thread(thread, limits=LimitChange(pids=65))
            with pytest.raises(ThreadDiffers, match="WHO"):
                await client.run_in_thread(thread, "echo ran", session_env={"WHO": "second"})
            kept = await client.thread(thread, env={"WHO": "second"}, if_different="keep")
            assert (kept.id, await ok(kept, "echo $WHO")) == (session.id, "a secret\n")
            run = await client.run_in_thread(
                thread, "echo $WHO", session_env={"WHO": "second"}, if_different="keep"
            )
            assert (run.session_id, run.output) == (session.id, "a secret\n")

    async def test_the_same_options_and_fewer_are_no_others(self, client: AsyncClient) -> None:
        thread = unique()
        env = {"WHO": "first", "MORE": "1"}
        async with deleted_afterwards(client.create(thread=thread, env=env, metadata={"n": "1"})) as session:
            assert (await client.thread(thread, session.environment, env=env)).id == session.id
            assert (await client.thread(thread, env={"WHO": "first"})).id == session.id
            # These two options set how a session starts. Its callers may have changed them since.
            again = await client.thread(thread, metadata={"n": "2"}, idle_timeout_s=77)
            assert (again.id, again.info.metadata) == (session.id, {"n": "1"})

    async def test_many_at_once_with_other_options(self, client: AsyncClient) -> None:
        thread = unique()
        asked = (client.thread(thread, env={"N": str(number % 2)}) for number in range(10))
        opened = await asyncio.gather(*asked, return_exceptions=True)
        sessions = [one for one in opened if not isinstance(one, BaseException)]
        try:
            assert len(sessions) == 5
            assert len({session.id for session in sessions}) == 1
            assert sum(isinstance(one, ThreadDiffers) for one in opened) == 5
        finally:
            await sessions[0].delete()

    async def test_an_ended_thread_begins_anew(self, client: AsyncClient) -> None:
        thread = unique()
        first = await client.thread(thread)
        assert first.info.predecessor is None
        await first.delete()
        async with deleted_afterwards(client.thread(thread)) as second:
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
        async with deleted_afterwards(client.thread(name)) as session:
            assert session.thread == name
            assert (await client.thread(name)).id == session.id
            assert (await client.run_in_thread(name, "echo $?")).session_id == session.id

    @pytest.mark.parametrize("thread", ["two words", "new\nline", "Zoë", "x" * 201])
    async def test_any_other_text_is_known_by_its_hash(self, client: AsyncClient, thread: str) -> None:
        """U16: the client refused thread names that the agents' middleware accepted."""
        name = thread + unique()
        async with deleted_afterwards(client.thread(name)) as session:
            assert session.thread == "sha256-" + hashlib.sha256(name.encode()).hexdigest()
            assert (await client.thread(name)).id == session.id
            assert (await client.run_in_thread(name, "true")).session_id == session.id
            assert [found.id async for found in client.sessions(thread=name)] == [session.id]

    @pytest.mark.parametrize("thread", ["", 7, b"x"])
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
