"""``Result``, and which calls are tried again."""

from __future__ import annotations

import dataclasses
import json

import pytest

from sandlot import CommandFailed, Result, Verdict, errors
from sandlot.client.http.retries.rules import MAX_BREAKS, TRIES, OutageLimit, backoff, pause_before_retry
from sandlot.client.http.transport.errors import error_of_answer
from sandlot.domain.execution import ExecResult, Exited


def result(code: int = 0, stdout: bytes = b"", stderr: bytes = b"") -> Result:
    verdict = Verdict.OK if code == 0 else Verdict.NONZERO
    exited = Exited(code, 0, "exit", duration_ms=1.5, peak_memory_bytes=7, output_bytes=len(stdout + stderr))
    return Result(ExecResult("e1", code, stdout, stderr, stdout + stderr, verdict, exited, 0, "ses_1", 2))


class TestResult:
    def test_attributes_and_keys_are_the_same(self) -> None:
        ran = result(3, b"out\xff", b"err")
        assert set(ran) == set(ran.keys()) == set(dict(ran))
        for key in ran:
            assert ran[key] == getattr(ran, key)
        assert (ran["output"], ran.raw.output) == ("out\ufffderr", b"out\xfferr")
        assert "exit_code" in ran
        assert "raw" not in ran
        assert ran.get("nothing", 5) == 5
        with pytest.raises(KeyError):
            ran["nothing"]
        assert json.loads(json.dumps(dict(ran)))["verdict"] == "nonzero"

    def test_it_does_not_change(self) -> None:
        with pytest.raises(dataclasses.FrozenInstanceError):
            result().raw = None  # type: ignore[misc]
        assert result() == result()
        assert result() != result(1)

    def test_ok_and_check(self) -> None:
        assert result().ok
        assert result().check() == result()
        with pytest.raises(CommandFailed, match=r"exit code 2 \(nonzero\): …e{200}$") as failed:
            result(2, b"out", b"e" * 5000).check()
        assert failed.value.result.exit_code == 2
        assert isinstance(failed.value, errors.SandlotError)

    def test_repr_is_short(self) -> None:
        assert repr(result(0, b"hi\n")) == "Result(exit_code=0, verdict='ok', output='hi\\n')"
        assert len(repr(result(0, b"x" * 100_000))) < 300


class TestRetries:
    def test_only_what_cannot_do_harm(self) -> None:
        cut = errors.LinkInterrupted("x")
        assert pause_before_retry(cut, 1, repeatable=True) is not None
        assert pause_before_retry(cut, 1, repeatable=False) is None
        assert pause_before_retry(cut, TRIES, repeatable=True) is None
        for refusal in (errors.NotFound("x"), errors.InvalidRequest("x"), errors.EngineTimeout("x")):
            assert pause_before_retry(refusal, 1, repeatable=True) is None

    def test_a_named_time_is_kept_if_it_is_short(self) -> None:
        for kind in (errors.Busy, errors.Unavailable):
            assert 1.5 <= (pause_before_retry(kind("x", retry_after_s=1.5), 1, repeatable=False) or 0) < 1.7
            assert pause_before_retry(kind("x", retry_after_s=3), 1, repeatable=True) is None
            assert pause_before_retry(kind("x"), 1, repeatable=True) is None
        begun = errors.Unavailable("x", retry_after_s=1, may_have_executed=True)
        assert pause_before_retry(begun, 1, repeatable=False) is None

    def test_backoff_grows_and_is_bounded(self) -> None:
        for tries in range(1, 60):
            whole = min(2.0, 0.1 * 2 ** (tries - 1))
            assert whole / 2 <= backoff(tries) <= whole

    def test_patience_is_over_after_so_much_time_or_so_many_breaks(self) -> None:
        now = 100.0
        outage_limit = OutageLimit(30, lambda: now)
        cut = errors.LinkInterrupted("x")
        assert [outage_limit.exceeded(cut) for _ in range(2 * MAX_BREAKS)] == [False] * 2 * MAX_BREAKS
        now += 29
        assert not outage_limit.exceeded(cut)
        assert outage_limit.exceeded(cut, interactive=True)
        assert outage_limit.exceeded(errors.Unavailable("closed", retryable=False))
        outage_limit.reset()
        now += 29
        assert not outage_limit.exceeded(cut)
        now += 31
        assert outage_limit.exceeded(cut)
        hasty = OutageLimit(0, lambda: now)
        assert [hasty.exceeded(cut) for _ in range(MAX_BREAKS)] == [False] * (MAX_BREAKS - 1) + [True]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (502, errors.LinkInterrupted),
        (503, errors.Unavailable),
        (401, errors.Unauthorized),
        (418, errors.SandlotError),
    ],
)
def test_what_a_proxy_says(status: int, kind: type[errors.SandlotError]) -> None:
    told = error_of_answer("http://x", status, b"<h1>Oh\n no</h1>" * 1000, {"retry-after": "7"})
    assert type(told) is kind
    assert "http://x returned" in told.message
    assert len(told.message) < 400
    assert told.retry_after_s == 7
    moved = error_of_answer("http://x", 301, b"", {"location": "https://x"})
    assert "https://x" in moved.message
