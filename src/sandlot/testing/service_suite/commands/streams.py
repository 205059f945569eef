"""Streams: events in order, offsets that count every byte, and readers that leave and return."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from sandlot.client.async_session import AsyncSession
from sandlot.domain.execution import Channel, ExecEvent, Exited, Output, Started
from sandlot.domain.ids import new_exec_id
from sandlot.testing.service_suite.harness import Cases


async def collect(events: AsyncIterator[ExecEvent]) -> tuple[bytes, Exited]:
    """Returns the output, which must have no gaps, and the exit event."""
    data, next_offset, exited = b"", None, None
    async for event in events:
        assert exited is None, "something after the exit"
        if isinstance(event, Output):
            assert next_offset is None or event.offset == next_offset, "a gap"
            next_offset = event.offset + len(event.data)
            data += event.data
        elif isinstance(event, Exited):
            exited = event
    assert exited is not None
    return data, exited


class StreamCases(Cases):
    async def test_started_output_exited(self, session: AsyncSession) -> None:
        # The sleep fixes the order: stdout and stderr are two pipes.
        events = [event async for event in session.stream("echo one; sleep 1; echo two >&2; exit 3")]
        started, *outputs, exited = events
        assert isinstance(started, Started)
        assert started.pid > 0
        assert not started.existing
        assert [(o.channel, o.offset, o.data) for o in outputs if isinstance(o, Output)] == [
            (Channel.STDOUT, 0, b"one\n"),
            (Channel.STDERR, 4, b"two\n"),
        ]
        assert len(outputs) == 2
        assert isinstance(exited, Exited)
        assert (exited.code, exited.output_bytes) == (3, 8)

    async def test_output_arrives_while_it_runs(self, session: AsyncSession) -> None:
        exec_id, received, code = new_exec_id(), b"", 0
        async for event in session.stream("echo early; sleep 60", exec_id=exec_id):
            if isinstance(event, Output):
                received += event.data
                await (await session.exec(exec_id)).kill()
            elif isinstance(event, Exited):
                code = event.code
        assert received == b"early\n"
        assert code > 128, "it ran until it was heard"

    async def test_silent_command(self, session: AsyncSession) -> None:
        events = [event async for event in session.stream("true")]
        assert [type(event) for event in events] == [Started, Exited]

    async def test_raw_bytes_of_a_stream(self, session: AsyncSession) -> None:
        data, _ = await collect(session.stream(r"printf 'a\000\377\303'; sleep 0.1; printf '\251'"))
        assert data == b"a\x00\xff\xc3\xa9"

    async def test_no_gap_in_much_output(self, session: AsyncSession) -> None:
        data, exited = await collect(session.stream("seq 300000", output_limit=None))
        assert data == "".join(f"{i}\n" for i in range(1, 300_001)).encode()
        assert exited.output_bytes == len(data)

    async def test_argv_and_stdin(self, session: AsyncSession) -> None:
        data, exited = await collect(session.stream(["cat"], stdin=b"given"))
        assert (data, exited.code) == (b"given", 0)

    async def test_timeout_ends_a_stream(self, session: AsyncSession) -> None:
        data, exited = await collect(session.stream("echo begun; sleep 60", timeout_s=2))
        assert (data, exited.reason) == (b"begun\n", "timeout")

    @pytest.mark.parametrize("offset", [0, 1, 4, 5, 8, 100])
    async def test_replay_from_an_offset(self, session: AsyncSession, offset: int) -> None:
        result = await session.run("echo one; echo two")
        running = await session.exec(result.exec_id)
        data, exited = await collect(running.events(offset))
        assert data == b"one\ntwo\n"[offset:]
        assert exited == result.raw.exited

    async def test_replay_begins_within_a_piece(self, session: AsyncSession) -> None:
        result = await session.run("echo one; echo two")
        first = [event async for event in (await session.exec(result.exec_id)).events(2)][1]
        assert isinstance(first, Output)
        assert first.offset == 2

    async def test_stream_of_a_known_id_replays(self, session: AsyncSession) -> None:
        exec_id = new_exec_id()
        first, _ = await collect(session.stream("echo $$", exec_id=exec_id))
        events = [event async for event in session.stream("echo $$", exec_id=exec_id)]
        assert isinstance(events[0], Started)
        assert events[0].existing
        assert b"".join(event.data for event in events if isinstance(event, Output)) == first

    async def test_leaving_early_does_not_end_it(self, session: AsyncSession) -> None:
        exec_id = new_exec_id()
        stream = session.stream("echo begun; sleep 4; echo done", exec_id=exec_id)
        async for event in stream:
            if isinstance(event, Output):
                break
        await stream.aclose()
        running = await session.exec(exec_id)
        assert (await running.status()).running
        assert (await running.wait(30)).output == "begun\ndone\n"

    async def test_reader_that_comes_back(self, session: AsyncSession) -> None:
        running = await session.start("echo a; sleep 0.4; echo b; sleep 0.4; echo c")
        seen, next_offset = b"", 0
        for _ in range(3):
            async for event in running.events(next_offset):
                if isinstance(event, Output):
                    seen += event.data
                    next_offset = event.offset + len(event.data)
                    break
        assert seen == b"a\nb\nc\n"

    async def test_two_readers_of_one(self, session: AsyncSession) -> None:
        running = await session.start("seq 100; sleep 0.3; seq 100")
        (one, _), (two, _) = await asyncio.gather(collect(running.events()), collect(running.events()))
        assert one == two == "".join(f"{i}\n" for i in [*range(1, 101), *range(1, 101)]).encode()

    async def test_several_streams_at_once(self, session: AsyncSession) -> None:
        commands = [f"seq {i}000; sleep 0.2; echo end{i}" for i in range(1, 7)]
        results = await asyncio.gather(*(collect(session.stream(command)) for command in commands))
        for i, (data, exited) in enumerate(results, start=1):
            assert data.endswith(f"\n{i}000\nend{i}\n".encode())
            assert exited.code == 0
