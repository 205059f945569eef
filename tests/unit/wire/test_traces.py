"""W3C trace context: what is read, what is passed on, and that it costs next to nothing when off."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.wire.tracing import traces

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_context_is_read_and_passed_on() -> None:
    context = traces.read({"traceparent": PARENT, "tracestate": "vendor=1"})
    assert context is not None
    assert context.trace_id == "0af7651916cd43dd8448eb211c80319c"
    assert context.headers == {"traceparent": PARENT, "tracestate": "vendor=1"}


@pytest.mark.parametrize(
    "parent",
    [
        "",
        PARENT.upper(),
        PARENT + "\r\nX-Evil: 1",
        PARENT.replace("00-", "01-", 1),
        "00-" + "0" * 32 + "-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-" + "0" * 16 + "-01",
        PARENT[:-1],
    ],
)
def test_a_malformed_context_is_ignored(parent: str) -> None:
    assert traces.read({"traceparent": parent, "tracestate": "vendor=1"}) is None


def test_a_state_that_is_too_long_or_not_text_is_left_out() -> None:
    for state in ("x" * (traces.MAX_TRACESTATE + 1), "vendor=\n", "vendor=\xff"):
        context = traces.read({"traceparent": PARENT, "tracestate": state})
        assert context is not None
        assert context.headers == {"traceparent": PARENT}


@given(st.text(max_size=80), st.text(max_size=600))
def test_whatever_is_sent_the_headers_are_safe(parent: str, state: str) -> None:
    context = traces.read({"traceparent": parent, "tracestate": state})
    for value in () if context is None else context.headers.values():
        assert value.isascii()
        assert value.isprintable()
        assert len(value) <= traces.MAX_TRACESTATE


def test_the_sdk_does_not_import_opentelemetry() -> None:
    """Importing it takes longer than a command takes to run."""
    script = f"""
import sys
import sandlot, sandlot.client.http
from sandlot.wire.tracing import traces
assert not any(name.startswith("opentelemetry") for name in sys.modules), "imported"
with traces.span("x", "CLIENT") as span:
    assert span is None and traces.headers() == {{}}
traces.set_received(traces.read({{"traceparent": {PARENT!r}}}))
assert traces.headers() == {{"traceparent": {PARENT!r}}}
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
