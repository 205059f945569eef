"""One trace through three processes: the program with the SDK, a coordinator and a worker."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import pytest
import pytest_asyncio
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from sandlot.testing.eventually import eventually
from tests.faults.rig import created_at_last
from tests.fleet_faults.member import Member
from tests.fleet_faults.rig import KEY, Fleet, running

pytestmark = [pytest.mark.docker, pytest.mark.slow]


@dataclass(frozen=True)
class Span:
    name: str
    trace_id: str
    id: str
    parent: str | None


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield exporter
    provider.shutdown()


@pytest_asyncio.fixture
async def fleet() -> AsyncIterator[Fleet]:
    members = Fleet(workers=0, coordinators=0)
    members.workers.append(members.new_worker(traces="console", log_format="json"))
    members.coordinators.append(members.new_coordinator(traces="console", log_format="json"))
    async with running(members) as fleet:
        yield fleet


def printed(member: Member) -> list[Span]:
    spans = []
    for line in member.log.read_text().splitlines():
        if line.startswith('{"name"'):
            span = json.loads(line)
            context, parent = span["context"], span["parent_id"]
            spans.append(
                Span(
                    span["name"],
                    context["trace_id"].removeprefix("0x"),
                    context["span_id"].removeprefix("0x"),
                    None if parent is None else parent.removeprefix("0x"),
                )
            )
    return spans


async def test_a_command_is_one_trace_over_three_processes(
    fleet: Fleet, exporter: InMemorySpanExporter
) -> None:
    tracer = trace.get_tracer("test")
    async with fleet.client(straight=False, key=KEY) as client:
        session = await created_at_last(client)
        with tracer.start_as_current_span("agent step") as step:
            trace_id = f"{step.get_span_context().trace_id:032x}"
            await session.run("true")
        ours = [
            Span(
                span.name,
                f"{span.context.trace_id:032x}",
                f"{span.context.span_id:016x}",
                None if span.parent is None else f"{span.parent.span_id:016x}",
            )
            for span in exporter.get_finished_spans()
        ]
        (worker,), (coordinator,) = fleet.workers, fleet.coordinators

        def found() -> list[Span]:
            spans = [*ours, *printed(coordinator), *printed(worker)]
            return [span for span in spans if span.trace_id == trace_id]

        await eventually(lambda: any(span.name == "exec" for span in found()), 20)
        await eventually(lambda: any("POST" in span.name for span in printed(coordinator)), 20)
        spans = {span.id: span for span in found()}
        (span,) = (span for span in spans.values() if span.name == "exec")
        path = [span.name]
        while span.parent is not None:
            span = spans[span.parent]
            path.append(span.name)
        route = "POST /v1/sessions/{session_id}/exec"
        assert path == ["exec", route, "sandlot POST", route, "sandlot POST", "agent step"]
        await session.delete()
