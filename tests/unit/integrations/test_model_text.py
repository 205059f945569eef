"""What a model reads: complete where it fits, counted where it does not, and never a terminal's tricks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.client.result import Result
from sandlot.domain import errors
from sandlot.domain.execution import ExecResult, Exited, verdict_of
from sandlot.domain.kept_output import Omitted
from sandlot.domain.network.decisions import Denied
from sandlot.domain.session import Session, SessionState
from sandlot.domain.session_states import lose, loss_report, lost_error
from sandlot.domain.text.terminal_codes import strip_terminal_codes
from sandlot.integrations.model_text import (
    format_error,
    format_output,
    format_result,
    shorten,
)


def result(output: str, **exited: object) -> Result:
    end = Exited(**{"code": 0, "signal": 0, "reason": "exited", "output_bytes": len(output), **exited})  # type: ignore[arg-type]
    data = output.encode()
    return Result(ExecResult("exec_1", end.code, data, b"", data, verdict_of(end), end))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (result("hello\n"), "hello"),
        (result(""), "(no output)"),
        (result("\n  \n"), "(no output)"),
        (result("no\n", code=3), "no\n[exit code 3]"),
        (result("", code=127), "(no output)\n[exit code 127: command not found]"),
        (result("a\r\nb\r\n"), "a\nb"),
        (result("\x1b[31mred\x1b[0m \x1b]0;title\x07rest"), "red rest"),
        (result("10%\r50%\r100%\n"), "100%"),
        (result("a\x07\x08b\tc"), "ab\tc"),
    ],
)
def test_a_result(given: Result, text: str) -> None:
    assert format_result(given) == text


def test_why_it_ended_is_said() -> None:
    assert "timed out after 2 s" in format_result(
        result("begun\n", code=143, reason="timeout", duration_ms=2000.0)
    )
    assert "ran out of memory" in format_result(result("", code=137, oom=True))
    assert "disk is full" in format_result(result("", code=1, disk_full=True))
    assert "its variables and background jobs are gone" in format_result(result("", shell_ended=True))
    assert "had died" in format_result(result("", shell_restarted=True))


def test_long_output_keeps_both_ends_and_counts_the_rest() -> None:
    text = format_result(result("a" * 60_000 + "z" * 60_000, code=1), limit=1000, path="/tmp/all.txt")
    assert text.startswith("a" * 500)
    assert "[… 119000 characters left out; the full output is in /tmp/all.txt …]" in text
    assert text.endswith("z" * 500 + "\n[exit code 1]")


def test_both_ends_are_shown_with_what_is_missing_between_them() -> None:
    short = result("begin\nend\n", truncated=True, output_bytes=10**9).raw
    raw = replace(short, output_omitted=Omitted(6, 10**9 - 10))
    text = format_result(Result(raw))
    assert text.startswith("begin\n\n[… 999,999,990 bytes left out …]\nend\n")
    long = replace(raw, output=b"a" * 10**6 + b"z" * 10**6, output_omitted=Omitted(10**6, 10**9 - 2 * 10**6))
    text = format_result(Result(long), limit=1000, path="/tmp/all.txt")
    assert text.startswith("a" * 500 + "\n[… about 999,999,000 bytes left out; ")
    assert "z" * 500 + "\n[the command wrote 1,000,000,000 bytes" in text
    assert "/tmp/all.txt, as far as it was kept" in text


@pytest.mark.parametrize(
    ("output", "at", "limit", "left_out"),
    [
        (b"a" * 100 + b"z" * 10, 100, 100, 50 + 7),  # one end is longer than its half, the other far shorter
        ("€".encode() * 100 + b"z", 300, 100, 150 + 7),
        (b"\xff" * 100 + b"z", 100, 100, 7),  # shown as three bytes each
    ],
)
def test_what_is_left_out_is_never_less_than_what_is_missing(
    output: bytes, at: int, limit: int, left_out: int
) -> None:
    assert f"[… about {left_out} bytes left out …]" in format_output(output, limit, None, Omitted(at, 7))


def test_output_that_was_not_kept_is_counted() -> None:
    text = format_result(result("begin", truncated=True, output_bytes=10**9))
    assert "wrote 1,000,000,000 bytes" in text


@given(st.text(), st.integers(2, 100))
def test_shortened_is_bounded_and_honest(text: str, limit: int) -> None:
    short = shorten(text, limit)
    if len(text) <= limit:
        assert short == text
    else:
        half = limit // 2
        assert short.startswith(text[:half])
        assert short.endswith(text[-half:])
        assert f" {len(text) - 2 * half} characters" in short


@given(st.text(alphabet=st.characters(codec="utf-8")))
def test_nothing_that_steers_a_terminal_is_left(text: str) -> None:
    assert not {chr(code) for code in range(32)} - {"\n", "\t"} & set(
        strip_terminal_codes(text + "\x1b[2J\x1b")
    )
    assert "\x1b" not in strip_terminal_codes(text + "\x1b[2J\x1b")


def test_a_loss_says_what_is_gone_and_that_nothing_replaces_it() -> None:
    session = Session(id="ses_1", environment="base", created_at=0, last_active_at=0)
    session = lose(session, loss_report(session, "the container was removed", 5.0))
    assert session.state is SessionState.LOST
    text = format_error(lost_error(session, may_have_executed=False))
    assert "sandbox_lost" in text
    assert "the container was removed" in text
    assert "files in /workspace" in text
    assert "It is not replaced automatically" in text


@pytest.mark.parametrize(
    ("error", "said", "not_said"),
    [
        (errors.Busy("too many"), ["busy", "Retrying later may help"], "may have run"),
        (errors.LinkInterrupted("cut"), ["may have run anyway", "later may help"], "will not help"),
        (errors.TooLarge("too much"), ["too_large", "will not help"], "may have run"),
    ],
)
def test_an_error_says_what_to_do(error: errors.SandlotError, said: list[str], not_said: str) -> None:
    text = format_error(error)
    assert all(part in text for part in said)
    assert not_said not in text


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("start \x1b]\n1\n2\nFAILED\n", "start \n1\n2\nFAILED\n"),  # a title that never ends
        ("line1\rline2\rline3", "line1\nline2\nline3"),
        ("\x9b31mred", "31mred"),
    ],
)
def test_nothing_is_hidden(text: str, read: str) -> None:
    assert strip_terminal_codes(text) == read


def test_of_megabytes_only_the_ends_are_read() -> None:
    output = b"head\n" + b"\n" * 8_000_000 + b"tail\n"
    text = format_output(output, 1000, "/tmp/all.txt")
    assert text.startswith("head\n")
    assert text.endswith("tail\n")
    assert "bytes left out; the full output is in /tmp/all.txt" in text
    assert len(text) < 1200


def test_an_ended_session_is_no_dead_end() -> None:
    text = format_error(errors.SessionEnded("Session ses_1 was deleted. Create a new one."))
    assert "will not help" not in text
    assert "A new sandbox is empty" in text


def test_what_the_network_denied() -> None:
    denied = [
        Denied(f"h{number}.example:443", "not allowed", "This sandbox has no network.", "Ask.", "x")
        for number in range(6)
    ]
    denied.append(Denied("a.example:443", "deny: a.example", "It is denied.", "Use another host."))
    for shown, expected in (
        (denied[:1], "[the network policy denied h0.example:443 (not allowed). This sandbox has no network. "
         "If you need it, ask the user to allow it.]"),
        (denied[6:], "[the network policy denied a.example:443 (deny: a.example). It is denied. Use another "
         "host.]"),
        (denied, "[and 2 more connections were denied]"),
    ):  # fmt: skip
        text = format_result(result("x", code=1, denied=tuple(shown)))
        assert text.endswith(expected)
        assert "[exit code 1]" in text
