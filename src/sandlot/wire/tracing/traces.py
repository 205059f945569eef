"""Traces: which one a call belongs to, passed on in W3C headers, and its spans.

Nothing here imports OpenTelemetry, which takes longer to import than a command takes to run. A program
that has not imported it has no trace to take part in, and pays for one look into a dictionary. A server
that is not told to send traces still passes on what its caller sent, and names it in its log.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
MAX_TRACESTATE: Final = 512  # bytes; W3C asks for at least that

_FORM: Final = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_STATE: Final = re.compile(r"[ -~]+")
_TRACER: Final = "sandlot"


@dataclass(frozen=True, slots=True)
class TraceContext:
    """``parent``: a whole ``traceparent``. ``state``: what vendors add, passed on as it is."""

    parent: str
    state: str = ""

    @property
    def trace_id(self) -> str:
        return self.parent[3:35]

    @property
    def headers(self) -> dict[str, str]:
        return {TRACEPARENT: self.parent} | ({TRACESTATE: self.state} if self.state else {})


# What the request that is being served came with.
_came_with: Final[ContextVar[TraceContext | None]] = ContextVar("sandlot_trace", default=None)


def read(headers: Mapping[str, str]) -> TraceContext | None:
    """The trace context that a caller sent; None if there is none or it is malformed."""
    found = _FORM.fullmatch(headers.get(TRACEPARENT, ""))
    if found is None or set(found[1]) == {"0"} or set(found[2]) == {"0"}:
        return None
    state = headers.get(TRACESTATE, "")
    return TraceContext(found[0], state if len(state) <= MAX_TRACESTATE and _STATE.fullmatch(state) else "")


def current() -> TraceContext | None:
    """The context to send with a call that is made now."""
    trace = sys.modules.get("opentelemetry.trace")
    came = _came_with.get()
    if trace is None:
        return came
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return came
    parent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"
    return TraceContext(parent, "" if came is None else came.state)


def headers() -> Mapping[str, str]:
    """The headers to send with a call that is made now."""
    context = current()
    return {} if context is None else context.headers


def set_received(context: TraceContext | None) -> None:
    """The request that is served from now on, in this task, came with this context."""
    _came_with.set(context)


@contextmanager
def span(name: str, kind: str = "INTERNAL", **attributes: str | int | float) -> Iterator[Any]:
    """A span around a block, if the program wants spans; None otherwise.

    ``kind``: as in OpenTelemetry. A span of the kind ``SERVER`` continues what the request came with.
    """
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None or _is_off(trace.get_tracer_provider(), trace):
        yield None
        return
    parent = None
    came = _came_with.get()
    if kind == "SERVER" and came is not None:
        parent = trace.set_span_in_context(trace.NonRecordingSpan(_span_context(trace, came)))
    tracer = trace.get_tracer(_TRACER)
    with tracer.start_as_current_span(
        name,
        context=parent,
        kind=trace.SpanKind[kind],
        attributes={key.replace("_", ".", 1): value for key, value in attributes.items()},
    ) as started:
        yield started


def _is_off(provider: Any, trace: Any) -> bool:
    """Whether the program has imported OpenTelemetry, or a library has, and nobody wants spans."""
    return isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider)


def _span_context(trace: Any, came: TraceContext) -> Any:
    found = _FORM.fullmatch(came.parent)
    assert found is not None
    return trace.SpanContext(
        trace_id=int(found[1], 16),
        span_id=int(found[2], 16),
        is_remote=True,
        trace_flags=trace.TraceFlags(int(found[3], 16)),
    )
