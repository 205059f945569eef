"""Programs as they are: they find the proxy by their settings, and show its refusals."""

from __future__ import annotations

import asyncio
import ssl
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.unit.network.rig import (
    LOOPBACK,
    OK,
    SECONDS,
    Rig,
    answering,
    eventually,
    new_authority,
    outside,
    proxying,
    resolving,
)

from sandlot.domain.network import rules
from sandlot.domain.network.policy import parse_policy
from sandlot.domain.network.session_egress import SessionEgress
from sandlot.providers.base import ByteStream
from sandlot.worker.network.dialer import Dialer
from sandlot.worker.network.options import ProxyOptions
from sandlot.worker.network.proxy import EgressProxy
from sandlot.worker.network.streams import HostStream

HERE = ["127.0.0.1"]


async def fetch(rig: Rig, url: str, context: ssl.SSLContext | None = None) -> bytes:
    """With Python's own client, on a thread."""
    proxy = f"http://127.0.0.1:{rig.port}"
    handlers: list[urllib.request.BaseHandler] = [
        urllib.request.ProxyHandler({"http": proxy, "https": proxy}),
        urllib.request.HTTPSHandler(context=context),
    ]

    def get() -> bytes:
        with urllib.request.build_opener(*handlers).open(url, timeout=SECONDS) as answer:
            return bytes(answer.read())

    return await asyncio.to_thread(get)


async def test_http(monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch, a=HERE)
    async with outside(answering(OK)) as host, proxying([f"a.test:{host.port}"]) as rig:
        assert await fetch(rig, f"http://a.test:{host.port}/") == b"hello"
        with pytest.raises(
            urllib.error.HTTPError, match=r"403: Sandlot denied b\.test:80 \(not allowed\)"
        ) as refused:
            await fetch(rig, "http://b.test/")
        with refused.value as answer:
            assert b'session.network.allow("b.test", for_s=600)' in answer.read()


async def test_https(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A refused tunnel shows its status line alone, so that has the host and the rule."""
    resolving(monkeypatch, a=HERE)
    authority = new_authority(tmp_path)
    async with outside(answering(OK), authority.server("a.test")) as host, proxying(["a.test"]) as rig:
        monkeypatch.setattr(rules, "WEB_PORTS", (host.port,))
        assert await fetch(rig, f"https://a.test:{host.port}/", authority.client()) == b"hello"
        with pytest.raises(urllib.error.URLError, match=r"403 Sandlot denied b\.test:443 \(not allowed\)"):
            await fetch(rig, "https://b.test/", authority.client())


class Listener:
    """A listener of a sandbox, with real sockets for its connections."""

    def __init__(self) -> None:
        self.address = ""
        self.arrived: asyncio.Queue[ByteStream | None] = asyncio.Queue()

    async def connections(self) -> AsyncIterator[ByteStream]:
        while (stream := await self.arrived.get()) is not None:
            yield stream

    async def close(self) -> None:
        self.arrived.put_nowait(None)


async def test_a_listeners_connections_go_on_until_the_proxy_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch, a=HERE)
    options, listener = ProxyOptions(allowed=LOOPBACK), Listener()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        listener.arrived.put_nowait(HostStream(reader, writer))

    async with outside(answering(OK)) as host:
        egress, dialer = SessionEgress(parse_policy([f"a.test:{host.port}"])), Dialer(options)
        proxy = EgressProxy(lambda: egress, dialer, options)
        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        serving = asyncio.create_task(proxy.serve_listener(listener))
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        request = f"GET http://a.test:{host.port}/ HTTP/1.1\r\nHost: a.test:{host.port}\r\n\r\n".encode()
        async with asyncio.timeout(SECONDS):
            for _ in range(2):
                writer.write(request)
                assert (await reader.readuntil(b"hello")).startswith(b"HTTP/1.1 200 ")
                await listener.close()  # the second time it is closed already
            await serving
            assert proxy.traffic.open == 1
            await proxy.close()
            assert proxy.traffic.open == 0
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await reader.readexactly(1)
        writer.close()
        server.close()
        dialer.close()
        await eventually(lambda: host.open == 0)
