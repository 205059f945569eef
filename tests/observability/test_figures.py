"""What counting and idle traces cost a command, next to building its HTTP request.

That takes about 50 µs, and the fastest command at best 1.3 ms, so half a request is the bar of 2 %. Idle traces
may take twice that here: ``bench.counting`` shows the bar itself.
"""

from __future__ import annotations

import sys

import httpx
import pytest
from bench.counting import counting, fastest, trace


def build_request() -> None:
    httpx.Request("POST", "http://127.0.0.1:8000/v1/sessions/s/exec", headers={"a": "b"}, content=b"{}")


@pytest.mark.alone
def test_all_that_is_counted_for_a_command_costs_little() -> None:
    assert 2 * fastest(counting()) < fastest(build_request)


@pytest.mark.alone
@pytest.mark.parametrize("imported", [True, False])
def test_traces_that_are_off_cost_little(monkeypatch: pytest.MonkeyPatch, imported: bool) -> None:
    """On a server, FastAPI has imported OpenTelemetry."""
    if not imported:
        monkeypatch.delitem(sys.modules, "opentelemetry.trace", raising=False)
    assert fastest(trace) < fastest(build_request)
