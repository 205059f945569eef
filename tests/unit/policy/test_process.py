"""The process that reads commands: bounded in time, and replaceable."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from sandlot.bash.budget import Budget
from sandlot.bash.process import MAX_CPU_S, PolicyProcess, cpu_s
from sandlot.config.registry.policies import shipped_policy
from sandlot.domain.policy.policy import Ruling


@pytest.fixture(scope="module")
def process() -> Iterator[PolicyProcess]:
    with PolicyProcess(shipped_policy("validation")) as process:
        yield process


def test_it_decides_about_command_lines_and_arguments(process: PolicyProcess) -> None:
    assert process.decide("ls | wc -l").ruling is Ruling.ALLOW
    denied = process.decide("ls; rm -rf /")
    assert denied.ruling is Ruling.DENY
    (finding,) = denied.findings
    assert (finding.rule, finding.words) == ("delete-system-files", ("rm", "-rf", "/"))
    assert "/workspace" in finding.allowed
    assert process.decide(None, ["rm", "-rf", "/"]).ruling is Ruling.DENY
    assert process.decide(None, ["echo", "rm -rf /"]).ruling is Ruling.ALLOW


# Each makes the parser spend time that grows with the square of the length.
@pytest.mark.parametrize("unit", ["a|", "`<!", "<<a ", "a=( "])
def test_a_text_that_makes_the_parser_slow_is_not_understood(process: PolicyProcess, unit: str) -> None:
    decision = process.decide((unit * Budget.MAX_BYTES)[: Budget.MAX_BYTES])
    assert decision.ruling is Ruling.ASK
    assert process.decide("ls").ruling is Ruling.ALLOW
    assert process._process is not None
    assert cpu_s(process._process.pid) < 60 * MAX_CPU_S


def test_a_process_that_dies_is_replaced(process: PolicyProcess) -> None:
    process.start()
    assert process._process is not None
    os.kill(process._process.pid, signal.SIGKILL)
    assert process.decide("ls").findings[0].rule == "not_understood"
    assert process.decide("ls").ruling is Ruling.ALLOW


def test_a_text_that_crashes_the_parser(process: PolicyProcess) -> None:
    """The parser looks such characters up behind the end of a table. It depends on chance what is there."""
    for _ in range(5):
        ruling = process.decide("kH{\U0010fff0\u00eb0").ruling
        assert ruling in (Ruling.ALLOW, Ruling.ASK)
        assert process.decide("ls").ruling is Ruling.ALLOW


def test_a_text_that_is_too_long_is_not_sent(process: PolicyProcess) -> None:
    decision = process.decide("echo " + "x" * Budget.MAX_BYTES)
    assert "is longer than" in decision.reason


def test_it_has_none_of_our_secrets(process: PolicyProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDLOT_API_KEY", "secret")
    with PolicyProcess(process.policy) as other:
        other.start()
        assert other._process is not None
        with open(f"/proc/{other._process.pid}/environ", "rb") as variables:
            assert b"SANDLOT_API_KEY" not in variables.read()
    assert other._process is None
