"""Output: merged into one pipe when asked, and cut in the middle when it is larger than its limit.

With ``merge_output``, stdout and stderr share one pipe, so their order is exact. When a command
writes more than ``output_limit``, the service keeps the first half of the limit and the last half,
and counts the bytes in between.
"""

from __future__ import annotations

import asyncio

import pytest

from sandlot.client.async_client import AsyncClient
from sandlot.client.async_session import AsyncSession
from sandlot.client.result import Result
from sandlot.domain.errors import Conflict
from sandlot.domain.execution import Channel, Exited, OnLimit, Output, PtySize
from sandlot.domain.ids import new_exec_id
from sandlot.domain.kept_output import Omitted
from sandlot.testing.service_suite.harness import Cases, deleted_afterwards, unique

REPETITIONS = 30
# Each line goes to the other channel than the line before it.
INTERLEAVED = "\n".join(f"echo {i} >&{1 + i % 2}" for i in range(40))
IN_ORDER = "".join(f"{i}\n" for i in range(40))
WHOLE = "".join(f"{i}\n" for i in range(1, 20_001)).encode()


class MergedOutputCases(Cases):
    @pytest.mark.parametrize("shell", [None, "merged"])
    async def test_merged_output_is_in_order(self, session: AsyncSession, shell: str | None) -> None:
        for _ in range(REPETITIONS):
            result = await session.run(INTERLEAVED, merge_output=True, shell=shell)
            assert (result.stdout, result.stderr, result.output) == (IN_ORDER, "", IN_ORDER)

    async def test_merged_output_ends_with_the_command(self, session: AsyncSession) -> None:
        shell = session.shell(unique())
        merged = await shell.run("echo a; echo b >&2; echo c", merge_output=True)
        assert (merged.stdout, merged.stderr) == ("a\nb\nc\n", "")
        apart = await shell.run("echo a; echo b >&2; echo c")
        assert (apart.stdout, apart.stderr) == ("a\nc\n", "b\n")

    async def test_merged_output_while_it_comes(self, session: AsyncSession) -> None:
        events = session.stream(INTERLEAVED, merge_output=True)
        received = [event async for event in events if isinstance(event, Output)]
        assert {output.channel for output in received} == {Channel.STDOUT}
        assert b"".join(output.data for output in received).decode() == IN_ORDER

        pieces: list[str] = []
        result = await session.run(
            INTERLEAVED, merge_output=True, on_stdout=pieces.append, on_stderr=pieces.append
        )
        assert ("".join(pieces), result.stdout) == (IN_ORDER, IN_ORDER)

    async def test_merged_output_of_a_background_command(self, session: AsyncSession) -> None:
        running = await session.start("cat >&2; echo out", stdin=True, merge_output=True)
        await running.write("in\n")
        await running.close_stdin()
        result = await running.wait(20)
        assert (result.stdout, result.stderr) == ("in\nout\n", "")

    async def test_merged_output_in_a_thread(self, client: AsyncClient) -> None:
        thread = unique("thread")
        async with deleted_afterwards(client.thread(thread)):
            result = await client.run_in_thread(thread, "echo a; echo b >&2; echo c", merge_output=True)
            assert (result.stdout, result.stderr) == ("a\nb\nc\n", "")

    async def test_merged_output_of_what_cannot_be_started(self, session: AsyncSession) -> None:
        result = await session.run(["no-such-program"], merge_output=True)
        assert (result.exit_code, result.stderr) == (127, "")
        assert "no-such-program" in result.stdout

    async def test_merged_output_on_a_terminal_changes_nothing(self, session: AsyncSession) -> None:
        running = await session.start("echo a; echo b >&2", pty=PtySize(), merge_output=True)
        result = await running.wait(20)
        assert (result.stdout, result.stderr) == ("a\r\nb\r\n", "")

    async def test_merged_and_not_are_two_commands(self, session: AsyncSession) -> None:
        exec_id = new_exec_id()
        first = await session.run("echo a", exec_id=exec_id, merge_output=True)
        assert (await session.run("echo a", exec_id=exec_id, merge_output=True)).stdout == first.stdout
        with pytest.raises(Conflict):
            await session.run("echo a", exec_id=exec_id)


def check_ends(result: Result, whole: bytes, limit: int) -> None:
    """Checks the result of a command that wrote ``whole``, more than the limit, to stdout."""
    head, tail = limit - limit // 2, limit // 2
    kept = whole[:head] + whole[len(whole) - tail :]
    omitted = Omitted(head, len(whole) - limit)
    assert (result.raw.stdout, result.raw.output, result.raw.stderr) == (kept, kept, b"")
    assert (result.raw.stdout_omitted, result.raw.output_omitted) == (omitted, omitted)
    assert result.raw.stderr_omitted is None
    assert (result.truncated, result.output_bytes) == (True, len(whole))
    assert (result.stdout_omitted_bytes, result.stderr_omitted_bytes) == (omitted.bytes, 0)


def check_complete(result: Result, whole: bytes) -> None:
    """Checks the result of a command whose output fits the limit."""
    assert (result.raw.output, result.truncated) == (whole, False)
    assert (result.raw.stdout_omitted, result.raw.stderr_omitted, result.raw.output_omitted) == (
        None,
        None,
        None,
    )
    assert result.marked_output == result.output


class EndsCases(Cases):
    @pytest.mark.parametrize("shell", [None, "ends"])
    @pytest.mark.parametrize("limit", [1, 2, 3, 1000, 1001, 90_000])
    async def test_both_ends_are_kept(self, session: AsyncSession, limit: int, shell: str | None) -> None:
        result = await session.run("seq 20000; exit 5", output_limit=limit, shell=shell)
        check_ends(result, WHOLE, limit)
        assert result.exit_code == 5

    async def test_the_bound_met_exactly_and_passed_by_one(self, session: AsyncSession) -> None:
        size = len(WHOLE)
        check_complete(await session.run("seq 20000", output_limit=size), WHOLE)
        check_complete(await session.run("seq 20000", output_limit=size + 1), WHOLE)
        result = await session.run("seq 20000", output_limit=size - 1)
        check_ends(result, WHOLE, size - 1)
        assert result.raw.stdout_omitted == Omitted(size // 2, 1)

    async def test_what_is_missing_is_marked(self, session: AsyncSession) -> None:
        result = await session.run("seq 20000", output_limit=1000)
        missing = f"\n[… {len(WHOLE) - 1000:,} bytes left out …]\n"
        assert result.marked_output == WHOLE[:500].decode() + missing + WHOLE[-500:].decode()
        assert result.output == (WHOLE[:500] + WHOLE[-500:]).decode()

    async def test_each_channel_has_its_own_count(self, session: AsyncSession) -> None:
        result = await session.run("seq 5000; seq 3000 >&2; seq 100; echo last >&2", output_limit=2000)
        raw = result.raw
        lines = [f"{i}\n" for i in range(1, 5001)]
        written = "".join(lines + lines[:100]).encode(), "".join([*lines[:3000], "last\n"]).encode()
        for whole, kept, omitted in zip(
            written, (raw.stdout, raw.stderr), (raw.stdout_omitted, raw.stderr_omitted), strict=True
        ):
            # The contract sets no order of the two pipes, only that each has its own ends.
            at, missing = (len(kept), 0) if omitted is None else (omitted.at, omitted.bytes)
            assert len(kept) + missing == len(whole)
            assert kept == whole[:at] + whole[at + missing :]
        assert len(raw.stdout) + len(raw.stderr) == len(raw.output) == 2000
        assert raw.output_omitted == Omitted(1000, sum(map(len, written)) - 2000)

    async def test_half_characters_at_the_seam_harm_no_others(self, session: AsyncSession) -> None:
        # A character has three bytes, so these limits cut within one, on one side or both.
        whole = ("€" * 3000).encode()
        await session.files.write("euros", whole)
        for limit in (99, 100, 101, 102, 103):
            pieces: list[str] = []
            result = await session.run("cat euros", output_limit=limit)
            with_callback = await session.run("cat euros", output_limit=limit, on_stdout=pieces.append)
            check_ends(result, whole, limit)
            check_ends(with_callback, whole, limit)
            head, tail = limit - limit // 2, limit // 2
            # Callbacks may receive more of the beginning than the result keeps.
            assert set("".join(pieces)) <= {"€", "\ufffd"}
            assert "".join(pieces).endswith("\ufffd" * (tail % 3) + "€" * (tail // 3))
            text = "€" * (head // 3) + "\ufffd" * (head % 3 > 0) + "\ufffd" * (tail % 3) + "€" * (tail // 3)
            assert result.stdout == result.output == text

    async def test_every_reader_gets_the_same_result(self, session: AsyncSession) -> None:
        """Whether it attaches at the beginning, in the middle or after the end."""
        running = await session.start("seq 20000; read x; seq 20000", stdin=True, output_limit=150_000)
        waiting = asyncio.create_task((await session.exec(running.id)).wait(30))
        received = b""
        async for event in running.events():
            if isinstance(event, Output):
                received += event.data
                if received == WHOLE:  # more than the half that is kept
                    await running.write("\n")
        for result in (await waiting, await running.wait(30)):
            check_ends(result, WHOLE + WHOLE, 150_000)

    async def test_a_stream_has_the_beginning_and_then_the_end(self, session: AsyncSession) -> None:
        received, exited, next_offset, jumps = b"", None, 0, []
        async for event in session.stream("seq 20000", output_limit=1000):
            if isinstance(event, Output):
                if event.offset != next_offset:
                    jumps.append((next_offset, event.offset))
                assert event.data == WHOLE[event.offset : event.offset + len(event.data)]
                next_offset = event.offset + len(event.data)
                received += event.data
            elif isinstance(event, Exited):
                exited = event
        assert exited is not None
        assert (exited.gap_from, exited.gap_to) == (500, len(WHOLE) - 500)
        assert received.startswith(WHOLE[:500])
        assert received.endswith(WHOLE[-500:])
        assert len(received) <= 1500
        assert len(jumps) == 1

    async def test_callbacks_and_the_result_agree(self, session: AsyncSession) -> None:
        pieces: list[str] = []
        result = await session.run("seq 20000", output_limit=1000, on_stdout=pieces.append)
        check_ends(result, WHOLE, 1000)
        assert "".join(pieces).endswith(WHOLE[-500:].decode())

    async def test_output_so_far_of_more_than_the_limit(self, session: AsyncSession) -> None:
        running = await session.start("seq 20000; read x", stdin=True, output_limit=1000)
        so_far = await running.read()
        while len(so_far.data) < 500:
            await asyncio.sleep(0.05)
            so_far = await running.read()
        assert so_far.running
        assert WHOLE[:1000].startswith(so_far.data)
        await running.close_stdin()
        check_ends(await running.wait(30), WHOLE, 1000)
        rest = await running.read(so_far.next_offset)
        assert not rest.running
        assert rest.data.endswith(WHOLE[-500:])

    async def test_output_so_far_says_what_is_missing(self, session: AsyncSession) -> None:
        ended = await session.start("seq 20000", output_limit=1000)
        check_ends(await ended.wait(30), WHOLE, 1000)
        so_far = await ended.read()
        assert so_far.data == WHOLE[:500] + WHOLE[-500:]
        assert so_far.omitted == Omitted(500, len(WHOLE) - 1000)
        assert so_far.text == so_far.data.decode()
        missing = f"\n[… {len(WHOLE) - 1000:,} bytes left out …]\n"
        assert so_far.marked_text == WHOLE[:500].decode() + missing + WHOLE[-500:].decode()
        in_the_gap = await ended.read(600)
        assert (in_the_gap.data, in_the_gap.omitted) == (WHOLE[-500:], Omitted(0, len(WHOLE) - 1100))
        tail = await ended.read(len(WHOLE) - 500)
        assert (tail.data, tail.omitted) == (WHOLE[-500:], None)

    async def test_a_limit_that_kills_keeps_the_beginning(self, session: AsyncSession) -> None:
        result = await session.run("yes", output_limit=1000, on_limit=OnLimit.KILL, timeout_s=30)
        assert result.raw.output == b"y\n" * 500
        assert result.raw.output_omitted == Omitted(1000, result.output_bytes - 1000)

    async def test_both_ends_again_by_the_same_id(self, session: AsyncSession) -> None:
        exec_id = unique("exec")
        for _ in range(2):
            check_ends(await session.run("seq 20000", output_limit=1000, exec_id=exec_id), WHOLE, 1000)
