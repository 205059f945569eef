"""``Cast``: the lines of an asciicast, as a player needs them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.domain.execution import Channel, ExecRequest, Exited, PtySize
from sandlot.domain.history.masking import MAX_SECRETS
from sandlot.domain.recordings.cast import Cast, end_of, shown_command
from sandlot.testing.asciicast import Asciicast, parse_asciicast

OUT, ERR = Channel.STDOUT, Channel.STDERR
DONE = Exited(0, 0, "exited")


def recorded(*steps: bytes, cast: Cast) -> Asciicast:
    return parse_asciicast(cast.header("a title") + b"".join(steps))


def start(cast: Cast, at: float = 100.0, *, exec_id: str = "e", **options: object) -> bytes:
    request = ExecRequest(command="make", exec_id=exec_id, **options)  # type: ignore[arg-type]
    return cast.started(at, request, shown_command(request, ()), [])


@given(st.lists(st.tuples(st.sampled_from([OUT, ERR]), st.binary(max_size=40)), max_size=20), st.booleans())
def test_whatever_is_written_is_a_valid_asciicast(
    written: list[tuple[Channel, bytes]], terminal: bool
) -> None:
    cast = Cast(100)
    steps = [start(cast, pty=PtySize() if terminal else None)]
    steps += [cast.output(101 + at, "e", channel, data) for at, (channel, data) in enumerate(written)]
    steps.append(cast.ended(200, "e", DONE))
    parsed = recorded(*steps, cast=cast)
    if terminal:
        return
    for channel in (OUT, ERR):  # alone, nothing of a channel is lost but what is no text
        alone = Cast(100)
        lines = [
            start(alone),
            *(alone.output(101, "e", channel, data) for of, data in written if of is channel),
        ]
        text = recorded(*lines, alone.ended(102, "e", DONE), cast=alone).shown.removeprefix("$ make\r\n")
        whole = b"".join(data for of, data in written if of is channel).decode("utf-8", "replace")
        assert text.replace("\r\n", "\n") == whole.replace("\r\n", "\n")
    assert parsed.header["timestamp"] == 100


@given(st.text(), st.lists(st.integers(0, 200), max_size=8))
def test_a_character_may_come_in_pieces(text: str, cuts: list[int]) -> None:
    data, cast = text.encode("utf-8", "surrogatepass"), Cast(0)
    ends = sorted(min(cut, len(data)) for cut in cuts)
    pieces = [data[begin:end] for begin, end in zip([0, *ends], [*ends, len(data)], strict=True)]
    steps = [start(cast, pty=PtySize()), *(cast.output(1, "e", OUT, piece) for piece in pieces)]
    parsed = recorded(*steps, cast.ended(2, "e", DONE), cast=cast)
    assert parsed.shown == "$ make\r\n" + data.decode("utf-8", "replace")


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        ([b"a\nb\n"], "a\r\nb\r\n"),
        ([b"a\r\nb"], "a\r\nb"),
        ([b"a\r", b"\nb"], "a\r\nb"),
        ([b"a", b"\nb"], "a\r\nb"),
        ([b"50%\r", b"100%\n"], "50%\r100%\r\n"),
        ([b"\n\n"], "\r\n\r\n"),
    ],
)
def test_lines_end_as_a_player_needs_it(pieces: list[bytes], shown: str) -> None:
    cast = Cast(0)
    steps = [start(cast), *(cast.output(1, "e", OUT, piece) for piece in pieces)]
    assert recorded(*steps, cast=cast).shown == f"$ make\r\n{shown}"


def test_a_terminals_lines_stay_as_they_are() -> None:
    cast = Cast(0)
    steps = start(cast, pty=PtySize(40, 120)), cast.output(1, "e", OUT, b"a\nb\r\n")
    parsed = recorded(*steps, cast.resized(2, PtySize(50, 100)), cast=cast)
    assert parsed.shown == "$ make\r\na\nb\r\n"
    assert [event.data for event in parsed.events if event.code == "r"] == ["120x40", "100x50"]


def test_a_prompt_begins_a_line() -> None:
    cast = Cast(0)
    steps = start(cast, 1), cast.output(2, "e", OUT, b"no newline"), cast.ended(3, "e", DONE)
    parsed = recorded(*steps, start(cast, 4, exec_id="f", shell="main"), cast=cast)
    assert parsed.shown == "$ make\r\nno newline\r\n(main) $ make\r\n"


def test_commands_that_run_at_once_share_the_recording() -> None:
    cast = Cast(0)
    steps = [start(cast, 1), start(cast, 2, exec_id="f")]
    steps += [cast.output(3, "e", OUT, b"caf\xc3"), cast.output(4, "f", OUT, b"other\n")]
    steps += [cast.output(5, "e", OUT, b"\xa9\n"), cast.ended(6, "f", DONE), cast.ended(7, "e", DONE)]
    assert recorded(*steps, cast=cast).shown == "$ make\r\n$ make\r\ncafother\r\né\r\n"


def test_times_never_go_back() -> None:
    cast = Cast(100, last_s=5.0)
    parsed = recorded(cast.note(101, "a"), cast.note(107.5, "b"), cast.note(103, "c"), cast=cast)
    assert [event.at for event in parsed.events] == [5.0, 7.5, 7.5]


def test_a_command_cannot_write_to_the_replays_terminal() -> None:
    request = ExecRequest(command="echo '\x1b]0;owned\x07'\nls")
    cast = Cast(0)
    parsed = recorded(cast.started(1, request, shown_command(request, ()), []), cast=cast)
    assert parsed.shown == "$ echo '\\x1b]0;owned\\x07'\r\nls\r\n"


def test_with_too_many_secrets_nothing_is_shown() -> None:
    secrets = [f"secret-{number}" for number in range(MAX_SECRETS + 1)]
    request, cast = ExecRequest(command="env", exec_id="e"), Cast(0)
    lines = cast.started(1, request, shown_command(request, secrets), secrets)
    parsed = recorded(lines, cast.output(2, "e", OUT, b"secret-1"), cast.ended(3, "e", DONE), cast=cast)
    assert parsed.shown == "$ ***\r\n[not recorded: more than 256 variables to mask]\r\n"


def test_where_a_recording_ends() -> None:
    cast = Cast(100)
    header, first, second = cast.header("t"), cast.note(101, "a"), cast.note(103.25, "b")
    whole = header + first + second
    for cut in (b"", b"[9", b'[104.0,"o","cut by a cra'):
        end = end_of(header, whole + cut, len(whole + cut))
        assert end is not None
        assert (end.began_at, end.last_s, end.size) == (100, 3.25, len(whole))
    assert end_of(header[:10], header[:10], 10) is None
    assert end_of(b"", b"", 0) is None
    only = end_of(header, header, len(header))
    assert only is not None
    assert (only.last_s, only.size) == (0.0, len(header))
