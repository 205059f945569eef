"""A real worker for attacks on its egress proxy, from inside a sandbox on each tier. What it asks and where it connects
is written down, and nothing of it leaves this machine.

The operator lets sandboxes reach 127.0.0.1. Other addresses of this machine's loopback stand for what is not allowed.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from sandlot.client.async_client import AsyncClient
from sandlot.client.async_session import AsyncSession
from sandlot.domain.network import rules
from sandlot.wiring import LocalWorker
from sandlot.worker.network import conversation
from tests.network.conftest import ENVIRONMENTS, opened_worker
from tests.unit.network.rig import resolving

HERE = "127.0.0.1"
FORBIDDEN = "127.0.0.2"  # this machine too, and the operator does not let sandboxes reach it
OPENED = b"HTTP/1.1 200 Connection established\r\n\r\n"
PROGRAMS = Path(__file__).parent / "inside"


@dataclass(frozen=True)
class Inside:
    """A sandbox to attack from."""

    session: AsyncSession
    client: AsyncClient
    environment: str

    async def say(self, messages: Sequence[bytes]) -> list[bytes]:
        """What the proxy answers to each message."""
        await self.session.files.write("say.py", (PROGRAMS / "say.py").read_bytes())
        await self.session.files.write(
            "messages.json", json.dumps([each.hex() for each in messages]).encode()
        )
        ran = await self.session.run("python3 say.py messages.json", timeout_s=120)
        assert ran.exit_code == 0, ran
        return [answer.encode("latin-1") for answer in json.loads(ran.stdout)]

    async def refused(self, messages: Sequence[bytes], *statuses: int) -> None:
        """Asserts that the proxy refuses each message itself: at once, or what follows in a tunnel that it reads."""
        answers = await self.say(messages)
        refusals = tuple(b"HTTP/1.1 %d " % status for status in statuses or (400, 403))
        let_through = {
            message: answer
            for message, answer in zip(messages, answers, strict=True)
            if not answer.removeprefix(OPENED).startswith(refusals)
        }
        assert not let_through, let_through


def worker_for_egress(**options: object) -> AbstractAsyncContextManager[LocalWorker]:
    return opened_worker(**{"egress_allow": (f"{HERE}/32",), **options})


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def egress_worker() -> AsyncIterator[LocalWorker]:
    async with worker_for_egress() as service:
        yield service


@pytest_asyncio.fixture(params=ENVIRONMENTS, loop_scope="session")
async def inside(egress_worker: LocalWorker, request: pytest.FixtureRequest) -> AsyncIterator[Inside]:
    """In a session without a policy."""
    environment, client = ENVIRONMENTS[request.param], AsyncClient(service=egress_worker)
    async with client.create(environment) as session:
        yield Inside(session, client, environment)


@pytest.fixture
def connects(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Where this process connects to by TCP, and the worker with it."""
    found: list[tuple[str, int]] = []
    real = socket.socket.connect

    def recording(self: socket.socket, address: Any) -> None:
        if self.family in (socket.AF_INET, socket.AF_INET6):
            found.append(address[:2])
        real(self, address)

    monkeypatch.setattr(socket.socket, "connect", recording)
    return found


def answers_of_names(monkeypatch: pytest.MonkeyPatch, **answers: Sequence[str]) -> list[str]:
    """As ``resolving`` does for names of .test. Others are not asked outside of this process. Gives all that was asked."""
    asked = resolving(monkeypatch, **answers)
    of_tests = socket.getaddrinfo

    def getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
        with contextlib.suppress(ValueError):
            ipaddress.ip_address(host)
            return of_tests(host, *args, **kwargs)
        if str(host).endswith(".test"):
            return of_tests(host, *args, **kwargs)
        asked.append(str(host))
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return asked


def web_ports(monkeypatch: pytest.MonkeyPatch, http: int, https: int) -> None:
    """Lets stand-ins have the ports of the web: below 1024 only root can listen."""
    monkeypatch.setattr(rules, "WEB_PORTS", (http, https))
    monkeypatch.setattr(conversation, "HTTP_PORT", http)


# --- messages to the proxy ------------------------------------------------------------------------


def get(authority: str, path: str = "/", host: str | None = None) -> bytes:
    lines = (f"GET http://{authority}{path} HTTP/1.1", f"Host: {authority if host is None else host}")
    return "\r\n".join((*lines, "Connection: close", "", "")).encode()


def connect(target: str, then: bytes = b"", host: str | None = None) -> bytes:
    """``then``: what follows in the tunnel."""
    return f"CONNECT {target} HTTP/1.1\r\nHost: {target if host is None else host}\r\n\r\n".encode() + then


def hello(name: str | None) -> bytes:
    """How a client of TLS begins. ``name``: of the server that it wants."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    outgoing = ssl.MemoryBIO()
    tls = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name)
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()
