"""More output than its limit: the first half of the limit and the last half are kept, and what is missing is counted."""

from __future__ import annotations

import asyncio

import pytest

from sandlot.client.async_session import AsyncSession
from sandlot.client.result import Result
from sandlot.domain.execution import Exited, OnLimit, Output
from sandlot.domain.kept_output import Omitted
from sandlot.testing.service_suite.harness import Cases, unique

WHOLE = "".join(f"{i}\n" for i in range(1, 20_001)).encode()


def check_ends(result: Result, whole: bytes, limit: int) -> None:
    """Of a command that wrote ``whole`` to stdout."""
    head, tail = limit - limit // 2, limit // 2
    kept = whole[:head] + whole[len(whole) - tail :]
    omitted = Omitted(head, len(whole) - limit)
    assert (result.raw.stdout, result.raw.output, result.raw.stderr) == (kept, kept, b"")
    assert (result.raw.stdout_omitted, result.raw.output_omitted) == (omitted, omitted)
    assert result.raw.stderr_omitted is None
    assert (result.truncated, result.output_bytes) == (True, len(whole))
    assert (result.stdout_omitted_bytes, result.stderr_omitted_bytes) == (omitted.bytes, 0)


def check_all(result: Result, whole: bytes) -> None:
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
        check_all(await session.run("seq 20000", output_limit=size), WHOLE)
        check_all(await session.run("seq 20000", output_limit=size + 1), WHOLE)
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
            # Which of the two pipes is read first is not said; that each has its own ends, is.
            at, missing = (len(kept), 0) if omitted is None else (omitted.at, omitted.bytes)
            assert len(kept) + missing == len(whole)
            assert kept == whole[:at] + whole[at + missing :]
        assert len(raw.stdout) + len(raw.stderr) == len(raw.output) == 2000
        assert raw.output_omitted == Omitted(1000, sum(map(len, written)) - 2000)

    async def test_half_characters_at_the_seam_harm_no_others(self, session: AsyncSession) -> None:
        # Three bytes each: whatever the limit is, one of these cuts within a character at one side or both.
        whole = ("€" * 3000).encode()
        await session.files.write("euros", whole)
        for limit in (99, 100, 101, 102, 103):
            pieces: list[str] = []
            result = await session.run("cat euros", output_limit=limit)
            heard = await session.run("cat euros", output_limit=limit, on_stdout=pieces.append)
            check_ends(result, whole, limit)
            check_ends(heard, whole, limit)
            head, tail = limit - limit // 2, limit // 2
            # Callbacks may have heard more than is kept of the beginning.
            assert set("".join(pieces)) <= {"€", "\ufffd"}
            assert "".join(pieces).endswith("\ufffd" * (tail % 3) + "€" * (tail // 3))
            text = "€" * (head // 3) + "\ufffd" * (head % 3 > 0) + "\ufffd" * (tail % 3) + "€" * (tail // 3)
            assert result.stdout == result.output == text

    async def test_every_reader_gets_the_same_result(self, session: AsyncSession) -> None:
        """One that was there from the beginning, one that came in the middle, one that came after the end."""
        running = await session.start("seq 20000; read x; seq 20000", stdin=True, output_limit=150_000)
        waiting = asyncio.create_task((await session.exec(running.id)).wait(30))
        heard = b""
        async for event in running.events():
            if isinstance(event, Output):
                heard += event.data
                if heard == WHOLE:  # more than the half that stays
                    await running.write("\n")
        for result in (await waiting, await running.wait(30)):
            check_ends(result, WHOLE + WHOLE, 150_000)

    async def test_a_stream_has_the_beginning_and_then_the_end(self, session: AsyncSession) -> None:
        heard, exited, next_offset, jumps = b"", None, 0, []
        async for event in session.stream("seq 20000", output_limit=1000):
            if isinstance(event, Output):
                if event.offset != next_offset:
                    jumps.append((next_offset, event.offset))
                assert event.data == WHOLE[event.offset : event.offset + len(event.data)]
                next_offset = event.offset + len(event.data)
                heard += event.data
            elif isinstance(event, Exited):
                exited = event
        assert exited is not None
        assert (exited.gap_from, exited.gap_to) == (500, len(WHOLE) - 500)
        assert heard.startswith(WHOLE[:500])
        assert heard.endswith(WHOLE[-500:])
        assert len(heard) <= 1500
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
