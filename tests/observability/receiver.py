"""A real receiver of OTLP: Datadog's test agent, as a process of its own."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from sandlot.testing.directory_suite.redis_server import free_port
from sandlot.testing.eventually import eventually

AGENT = Path(__file__).parents[2] / ".venv-otlp/bin/ddapm-test-agent"
STARTED_WITHIN_S = 60.0


@dataclass(frozen=True)
class Received:
    """``service``: which process sent it."""

    service: str
    name: str
    trace_id: str
    id: str
    parent: str


class Receiver:
    def __init__(self, folder: Path) -> None:
        assert AGENT.exists(), "there is no .venv-otlp: run make venv"
        self.endpoint = f"http://127.0.0.1:{free_port()}"
        self._log = folder / "receiver.log"
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        port = self.endpoint.rpartition(":")[2]
        others = ("--port", str(free_port()), "--otlp-grpc-port", str(free_port()))
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [str(AGENT), "--otlp-http-port", port, *others],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        await eventually(self._answers, STARTED_WITHIN_S, self._log.read_text)

    async def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text()
        try:
            await self.spans()
        except httpx.TransportError:
            return False
        return True

    async def spans(self) -> list[Received]:
        async with httpx.AsyncClient(trust_env=False) as http:
            answer = await http.get(f"{self.endpoint}/test/session/traces", timeout=20)
        return [span for request in answer.raise_for_status().json() for span in _spans_in(request)]

    async def clean(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(self._process.wait, 30)


def _spans_in(request: dict[str, Any]) -> Iterator[Received]:
    for resource in request["resource_spans"]:
        attributes = {each["key"]: each["value"] for each in resource["resource"]["attributes"]}
        for scope in resource["scope_spans"]:
            for span in scope["spans"]:
                yield Received(
                    attributes["service.name"]["string_value"],
                    span["name"],
                    b64decode(span["trace_id"]).hex(),
                    b64decode(span["span_id"]).hex(),
                    b64decode(span.get("parent_span_id", "")).hex(),
                )
