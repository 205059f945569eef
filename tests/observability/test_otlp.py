"""Servers send their spans by OTLP to a receiver that is not ours, as they do to a collector."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from sandlot.testing.eventually import eventually
from tests.faults.rig import created_at_last
from tests.fleet_faults.rig import KEY, Fleet, running
from tests.observability.receiver import Receiver

pytestmark = [pytest.mark.docker, pytest.mark.slow]

# OpenTelemetry sends what it has collected every five seconds.
SENT_WITHIN_S = 30.0


@pytest_asyncio.fixture
async def receiver(tmp_path: Path) -> AsyncIterator[Receiver]:
    receiver = Receiver(tmp_path)
    try:
        await receiver.start()
        yield receiver
    finally:
        await receiver.clean()


@pytest.fixture
def program(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> Iterator[trace.Tracer]:
    """This process, as a program that sends its own spans to the same receiver."""
    provider = TracerProvider(resource=Resource.create({"service.name": "program"}))
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{receiver.endpoint}/v1/traces")))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield trace.get_tracer("test")
    provider.shutdown()


@pytest_asyncio.fixture
async def fleet(receiver: Receiver) -> AsyncIterator[Fleet]:
    members = Fleet(workers=0, coordinators=0)
    members.workers.append(members.new_worker(traces="otlp"))
    members.coordinators.append(members.new_coordinator(traces="otlp"))
    for member in members.members:
        member.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = receiver.endpoint
    async with running(members) as fleet:
        yield fleet


async def test_one_trace_of_three_processes_arrives(
    fleet: Fleet, receiver: Receiver, program: trace.Tracer
) -> None:
    async with fleet.client(straight=False, key=KEY) as client:
        session = await created_at_last(client)
        with program.start_as_current_span("agent step") as step:
            trace_id = f"{step.get_span_context().trace_id:032x}"
            await session.run("true")
        await session.delete()
    spans = {}

    async def whole() -> bool:
        spans.update({span.id: span for span in await receiver.spans() if span.trace_id == trace_id})
        return {span.service for span in spans.values()} == {
            "program",
            "sandlot-coordinator",
            "sandlot-worker",
        } and all(not span.parent or span.parent in spans for span in spans.values())

    await eventually(whole, SENT_WITHIN_S, lambda: f"every span has its parent: {spans}")
    (span,) = (span for span in spans.values() if span.name == "exec")
    path = [(span.service, span.name)]
    while span.parent:
        span = spans[span.parent]
        path.append((span.service, span.name))
    route = "POST /v1/sessions/{session_id}/exec"
    assert path == [
        ("sandlot-worker", "exec"),
        ("sandlot-worker", route),
        ("sandlot-coordinator", "sandlot POST"),
        ("sandlot-coordinator", route),
        ("program", "sandlot POST"),
        ("program", "agent step"),
    ]
