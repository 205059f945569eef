"""The trace of a LangGraph run has its sandbox calls, below the tool that made them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain.agents.middleware.types import ToolCallRequest
from langchain_core.messages import ToolMessage
from langgraph.types import Command
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from sandlot import Client
from sandlot.integrations.langchain import sandbox_tools
from tests.integrations.langchain_runs import ask, config
from tests.integrations.scripted import by_conversation, calls, results

pytestmark = pytest.mark.docker

Answer = ToolMessage | Command[Any]


class ToolSpans(AgentMiddleware):
    """A span for each call of a tool, as instrumentations of LangGraph make it."""

    def wrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Answer]
    ) -> Answer:
        with trace.get_tracer("test").start_as_current_span(f"tool {request.tool_call['name']}"):
            return handler(request)

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Answer]]
    ) -> Answer:
        with trace.get_tracer("test").start_as_current_span(f"tool {request.tool_call['name']}"):
            return await handler(request)


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield exporter
    provider.shutdown()


@pytest.mark.parametrize("asynchronous", [False, True], ids=["invoke", "ainvoke"])
def test_sandbox_calls_are_below_their_tools(
    client: Client, thread: str, exporter: InMemorySpanExporter, asynchronous: bool
) -> None:
    model = by_conversation(
        calls(("bash", {"command": "echo one"}), ("read_file", {"path": "no-such-file"})),
        calls(("write_file", {"path": "two", "content": "2"})),
    )
    agent = create_agent(model, sandbox_tools(client), middleware=[ToolSpans()])
    with trace.get_tracer("test").start_as_current_span("agent run"):
        state = (
            asyncio.run(agent.ainvoke(ask(), config(thread)))
            if asynchronous
            else agent.invoke(ask(), config(thread))
        )
    assert len(results(state)) == 3
    spans = exporter.get_finished_spans()
    assert len({span.context.trace_id for span in spans}) == 1, "one run is one trace"
    by_id = {span.context.span_id: span for span in spans}

    def parent_of(span: ReadableSpan) -> str:
        return by_id[span.parent.span_id].name if span.parent is not None else ""

    sent = [span for span in spans if span.name.startswith("sandlot ")]
    assert {parent_of(span) for span in sent} == {"tool bash", "tool read_file", "tool write_file"}
    assert {parent_of(span) for span in spans if span.name.startswith("tool ")} == {"agent run"}
