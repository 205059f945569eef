"""Both ends of an output, whatever a reader of it has seen: compared with what is written down in full."""

from __future__ import annotations

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from sandlot.domain.execution import Channel, Exited, Output, ResultFold
from sandlot.domain.kept_output import BLOCK_BYTES, Omitted

PIECES = st.lists(st.tuples(st.sampled_from(Channel), st.integers(1, 40)), max_size=30)


def written(pieces: list[tuple[Channel, int]]) -> list[tuple[Channel, int]]:
    """Each byte's channel and value; neighbours differ."""
    channels = [channel for channel, size in pieces for _ in range(size)]
    return [(channel, at % 251) for at, channel in enumerate(channels)]


@given(PIECES, st.integers(1, 300), st.integers(1, 300), st.integers(0, 1200), st.data())
def test_every_reader_gets_the_ends(
    pieces: list[tuple[Channel, int]], limit: int, keep_more: int, live: int, data: st.DataObject
) -> None:
    """One that was there from the beginning has seen ``live`` bytes, of which some were not kept later."""
    whole = written(pieces)
    over = len(whole) > limit
    head, tail = (limit - limit // 2, len(whole) - limit // 2) if over else (len(whole), len(whole))
    live = min(live, limit, len(whole))
    seen = [*range(max(head, live) if over else len(whole)), *range(max(tail, live), len(whole))]
    if over and live < head:
        seen = [*range(head), *range(tail, len(whole))]
    keep = limit if data.draw(st.booleans()) else limit + keep_more

    fold = ResultFold("e", keep)
    at = 0
    while at < len(seen):
        end = at + 1
        most = data.draw(st.integers(1, 50))
        while (
            end < len(seen)
            and end - at < most
            and seen[end] == seen[end - 1] + 1
            and whole[seen[end]][0] is whole[seen[at]][0]
        ):
            end += 1
        values = bytes(whole[offset][1] for offset in seen[at:end])
        assert fold.add(Output(whole[seen[at]][0], seen[at], values)) is None
        at = end
    errors = sum(channel is Channel.STDERR for channel, _ in whole)
    gap = (head, tail) if over else (0, 0)
    result = fold.add(
        Exited(0, 0, "exited", "", over, len(whole), stderr_bytes=errors, gap_from=gap[0], gap_to=gap[1])
    )

    assert result is not None
    kept = whole[:head] + whole[tail:]
    assert result.output == bytes(value for _, value in kept)
    assert result.output_omitted == (Omitted(head, tail - head) if over else None)
    assert (result.gaps, result.truncated) == (0, over)
    for channel, stream, omitted in (
        (Channel.STDOUT, result.stdout, result.stdout_omitted),
        (Channel.STDERR, result.stderr, result.stderr_omitted),
    ):
        before, between, after = (
            [value for of, value in part if of is channel]
            for part in (whole[:head], whole[head:tail], whole[tail:])
        )
        assert stream == bytes(before + after)
        assert omitted == (Omitted(len(before), len(between)) if between else None)


def test_no_more_than_the_bound_is_held() -> None:
    keep = 2 * 1024 * 1024
    fold = ResultFold("e", keep)
    piece = b"x" * 32_768
    tracemalloc.start()
    try:
        for number in range(20 * keep // len(piece)):
            fold.add(Output(Channel.STDOUT, number * len(piece), piece))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # The head grows as a bytearray does, by an eighth more than it needs.
    assert peak < keep * 17 / 16 + 3 * BLOCK_BYTES


def test_an_older_agent_keeps_the_beginning_and_does_not_say_where_the_rest_is() -> None:
    fold = ResultFold("e", 10)
    fold.add(Output(Channel.STDOUT, 0, b"0123"))
    fold.add(Output(Channel.STDERR, 4, b"456789"))
    result = fold.add(Exited(0, 0, "exited", truncated=True, output_bytes=100))
    assert result is not None
    assert (result.stdout, result.stderr, result.output) == (b"0123", b"456789", b"0123456789")
    assert result.output_omitted == Omitted(10, 90)
    assert (result.stdout_omitted, result.stderr_omitted) == (Omitted(4, 90), None)


def test_output_that_was_forgotten_is_missing() -> None:
    fold = ResultFold("e", 10)
    result = fold.add(
        Exited(0, 0, "exited", truncated=True, output_bytes=100, stderr_bytes=40, gap_from=5, gap_to=95)
    )
    assert result is not None
    assert (result.output, result.output_omitted, result.truncated) == (b"", Omitted(0, 100), True)
    assert (result.stdout_omitted, result.stderr_omitted) == (Omitted(0, 60), Omitted(0, 40))
    assert result.gaps == 1


def test_channels_that_take_turns_cost_no_more_than_bytes() -> None:
    """Whoever writes the output says how often the channel changes."""
    keep = 128 * 1024
    fold = ResultFold("e", keep)
    for at in range(0, keep, 2):
        fold.add(Output(Channel.STDERR if at % 4 else Channel.STDOUT, at, b"ab" if at % 4 else b"xy"))
    tracemalloc.start()
    try:
        result = fold.add(Exited(0, 0, "exited", output_bytes=keep, stderr_bytes=keep // 2))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert result is not None
    assert (result.stdout, result.stderr) == (b"xy" * (keep // 4), b"ab" * (keep // 4))
    # Bytes and marks as they were held, the whole and the two channels, and what one of these is made with.
    assert peak < 6 * keep


@given(st.lists(st.tuples(st.sampled_from(Channel), st.sampled_from([1, 2, 31, 33, 400])), max_size=60))
def test_channels_are_told_apart_however_long_their_runs_are(pieces: list[tuple[Channel, int]]) -> None:
    whole = written(pieces)
    fold, at = ResultFold("e", len(whole) + 1), 0
    for channel, size in pieces:
        fold.add(Output(channel, at, bytes(value for _, value in whole[at : at + size])))
        at += size
    result = fold.add(Exited(0, 0, "exited", output_bytes=at))
    assert result is not None
    assert result.stdout == bytes(value for of, value in whole if of is Channel.STDOUT)
    assert result.stderr == bytes(value for of, value in whole if of is Channel.STDERR)


def test_an_older_agent_and_one_channel() -> None:
    for channel, of_stdout, of_stderr in (
        (Channel.STDOUT, Omitted(10, 90), None),
        (Channel.STDERR, None, Omitted(10, 90)),
    ):
        fold = ResultFold("e", 10)
        fold.add(Output(channel, 0, b"0123456789"))
        result = fold.add(Exited(0, 0, "exited", truncated=True, output_bytes=100))
        assert result is not None
        assert (result.stdout_omitted, result.stderr_omitted) == (of_stdout, of_stderr)
        assert result.output_omitted == Omitted(10, 90)
        assert (result.gaps, result.truncated) == (0, True)  # the exit tells of it


def test_what_an_older_agents_reader_missed_is_a_gap() -> None:
    fold = ResultFold("e", 100)
    fold.add(Output(Channel.STDOUT, 0, b"0123"))
    fold.add(Output(Channel.STDOUT, 8, b"89"))
    result = fold.add(Exited(0, 0, "exited", truncated=True, output_bytes=100))
    assert result is not None
    assert result.gaps == 1


def test_a_reader_that_came_later_does_not_know_what_was_on_stderr_before() -> None:
    """From the offset 50 on; 40 of the bytes before it were on stderr, and 20 after it are missing."""
    end = Exited(0, 0, "exited", truncated=True, output_bytes=100, stderr_bytes=45, gap_from=60, gap_to=80)
    both, one = ResultFold("e", 100, 50), ResultFold("e", 100, 50)
    both.add(Output(Channel.STDOUT, 50, b"o" * 10))
    both.add(Output(Channel.STDOUT, 80, b"o" * 15))
    both.add(Output(Channel.STDERR, 95, b"e" * 5))
    one.add(Output(Channel.STDOUT, 50, b"o" * 10))
    one.add(Output(Channel.STDOUT, 80, b"o" * 20))
    for fold, of_stdout in ((both, None), (one, Omitted(10, 20))):
        result = fold.add(end)
        assert result is not None
        assert result.output_omitted == Omitted(10, 20)
        assert (result.stdout_omitted, result.stderr_omitted) == (of_stdout, None)
