"""A receiver on loopback, and webhooks on a history of their own. The receiver can be down, slow and wrong."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sandlot.domain.callers.principal import OWNER, Principal
from sandlot.domain.history.events import EventKind
from sandlot.domain.history.recorder import Subject
from sandlot.domain.ids import new_session_id
from sandlot.domain.network.addresses import parse_networks
from sandlot.domain.webhooks.attempts import Schedule
from sandlot.domain.webhooks.webhook import Progress, Webhook
from sandlot.testing.eventually import eventually
from sandlot.worker.history.history import History
from sandlot.worker.history.options import HistoryOptions
from sandlot.worker.recordings.options import RecordingOptions
from sandlot.worker.recordings.recordings import Recordings
from sandlot.worker.webhooks.options import WebhookOptions
from sandlot.worker.webhooks.webhooks import WorkerWebhooks

LOOPBACK = parse_networks(["127.0.0.0/8"])
# Attempts soon after each other, and more of them than any test's receiver is down for.
PATIENT = WebhookOptions(LOOPBACK, Schedule(attempts=1000, first_s=0.02, factor=1.0), per_s=1000.0)
HASTY = replace(PATIENT, schedule=Schedule(attempts=3, first_s=0.01, factor=2.0, longest_s=0.05))
TYPES = ("session.created", "session.ended")


@dataclass
class Request:
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def data(self) -> Any:
        return json.loads(self.body)["data"]

    @property
    def number(self) -> int:
        """Which of the test's events it is."""
        return int(self.data["thread"])

    def is_signed_with(self, secret: str) -> bool:
        """As the specification says it, written down again."""
        signed = b".".join([self.id.encode(), self.headers["webhook-timestamp"].encode(), self.body])
        key = base64.b64decode(secret.split("_", 1)[1])
        expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
        return hmac.compare_digest(f"v1,{expected}", self.headers["webhook-signature"])


Answer = Callable[[Request], Awaitable[bytes]]


def status(code: int, *headers: str, body: bytes = b"") -> bytes:
    lines = [f"HTTP/1.1 {code} x", f"content-length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def accept(_: Request) -> bytes:
    return status(204)


@dataclass
class Receiver:
    """``requests``: what came, in order. ``answer`` gives the bytes to send; then the connection is closed if
    they are no complete answer."""

    answer: Answer = accept
    requests: list[Request] = field(default_factory=list)
    connections: int = 0
    port: int = 0
    tls: ssl.SSLContext | None = None
    _server: asyncio.Server | None = None
    _open: set[asyncio.StreamWriter] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/events"

    @property
    def ids(self) -> list[str]:
        return [request.id for request in self.requests]

    @property
    def numbers(self) -> list[int]:
        return [request.number for request in self.requests]

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            for writer in self._open:
                writer.close()
            await self._server.wait_closed()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._open.add(writer)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                pairs = (line.split(": ", 1) for line in head[1:] if line)
                headers = {name.lower(): value for name, value in pairs}
                body = await reader.readexactly(int(headers["content-length"]))
                request = Request(head[0].split(" ")[1], headers, body)
                self.requests.append(request)
                answer = await self.answer(request)
                writer.write(answer)
                await writer.drain()
                if b"content-length" not in answer:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            self._open.discard(writer)
            writer.close()


@contextlib.asynccontextmanager
async def receiving(answer: Answer = accept, **options: Any) -> AsyncIterator[Receiver]:
    receiver = Receiver(answer, **options)
    await receiver.start()
    try:
        yield receiver
    finally:
        await receiver.stop()


@dataclass
class Rig:
    """A history with webhooks, as a worker has it."""

    history: History
    webhooks: WorkerWebhooks

    def record(
        self, *numbers: int, tenant: str = "default", kind: EventKind = EventKind.SESSION_ENDED
    ) -> None:
        for number in numbers:
            about = Subject(tenant, new_session_id(), thread=str(number))
            self.history.recorder.record(kind, about)

    async def create(self, receiver: Receiver | str, *events: str, caller: Principal = OWNER) -> Webhook:
        url = receiver if isinstance(receiver, str) else receiver.url
        return await self.webhooks.create(caller, url, events or TYPES)

    async def progress(self, webhook: Webhook) -> Progress:
        return (await self.webhooks.get(Principal(webhook.tenant), webhook.id))[1]

    async def until(
        self, webhook: Webhook, check: Callable[[Progress], object], seconds: float = 20
    ) -> Progress:
        found: list[Progress] = []

        async def holds() -> bool:
            found.append(await self.progress(webhook))
            return bool(check(found[-1]))

        await eventually(holds, seconds, lambda: str(found[-1]))
        return found[-1]

    async def until_delivered(self, webhook: Webhook, count: int) -> Progress:
        return await self.until(webhook, lambda progress: progress.delivered >= count)

    async def dead_letters(self, webhook: Webhook) -> Sequence[Any]:
        caller = Principal(webhook.tenant)
        return (await self.webhooks.dead_letters(caller, webhook.id, after=None, limit=1000)).dead_letters


@contextlib.asynccontextmanager
async def rig_in(folder: Path, options: WebhookOptions = PATIENT, **history: Any) -> AsyncIterator[Rig]:
    unrecorded = Recordings(folder, RecordingOptions(enabled=False))
    made = History(folder, "w1", HistoryOptions(**history), unrecorded)
    webhooks = WorkerWebhooks(made, folder, options)
    await made.open()
    await webhooks.open()
    try:
        yield Rig(made, webhooks)
    finally:
        await webhooks.stop()
        await made.close()
        await webhooks.close()
