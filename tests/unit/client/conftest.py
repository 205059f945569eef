"""The SDK against the real API on a real socket, with the fake service behind, and a proxy that cuts wires."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import certifi
import pytest
import uvicorn

from sandlot import AsyncClient, AsyncSession
from sandlot.api import create_app
from sandlot.client.http import HttpService
from sandlot.testing.fake import FakeService


@dataclass
class Server:
    url: str
    port: int
    fake: FakeService


@contextlib.contextmanager
def serving(api_key: str | None = None, **tls: str) -> Iterator[Server]:
    """On a thread of its own, so that blocking tests can use it too."""
    fake = FakeService()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        config = uvicorn.Config(
            create_app(fake, api_key=api_key),
            log_level="warning",
            lifespan="off",
            ws="websockets-sansio",
            **tls,  # type: ignore[arg-type]
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            while not server.started:
                time.sleep(0.005)
            yield Server(f"http{'s' if tls else ''}://127.0.0.1:{port}", port, fake)
        finally:
            server.should_exit = True
            server.force_exit = True
            thread.join()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as server:
        yield server


@pytest.fixture
def guarded() -> Iterator[Server]:
    with serving("the-key") as server:
        yield server


@pytest.fixture
def secured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """By TLS, with a certificate that the HTTP client trusts and the system does not know."""
    key, certificate = str(tmp_path / "key.pem"), str(tmp_path / "certificate.pem")
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test"]
    names = ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*make, *names, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)
    monkeypatch.setattr(certifi, "where", lambda: certificate)
    with serving(ssl_keyfile=key, ssl_certfile=certificate) as server:
        yield server


@pytest.fixture
async def client(server: Server) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(server.url) as client:
        yield client


@pytest.fixture
async def session(client: AsyncClient) -> AsyncIterator[AsyncSession]:
    async with await client.create() as session:
        yield session


# What a proxy does with the n-th connection (from 0): None passes all; a number of bytes of the answer passes
# that many and cuts.
Cuts = Callable[[int], int | None]


class CuttingProxy:
    def __init__(self, port: int, cuts: Cuts) -> None:
        self._port = port
        self._cuts = cuts
        self._tasks: set[asyncio.Task[None]] = set()
        self.connections = 0
        self.cut = 0
        self.writers: list[asyncio.StreamWriter] = []
        self.url = ""

    async def __aenter__(self) -> CuttingProxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        left = self._cuts(self.connections)
        self.connections += 1
        self.writers.append(writer)
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._port)
        asking = asyncio.create_task(_pass(reader, up_writer))
        try:
            while data := await up_reader.read(1024):
                if left is not None:
                    data, left = data[:left], left - len(data)
                writer.write(data)
                await writer.drain()
                if left is not None and left <= 0:
                    self.cut += 1
                    return
        except OSError:
            pass
        finally:
            asking.cancel()
            for end in (writer, up_writer):
                with contextlib.suppress(OSError):
                    await asyncio.sleep(0)
                    end.transport.abort() if left is not None and left <= 0 else end.close()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()


@pytest.fixture
def cutting(server: Server) -> Callable[[Cuts], contextlib.AbstractAsyncContextManager[CutClient]]:
    @contextlib.asynccontextmanager
    async def make(cuts: Cuts) -> AsyncIterator[CutClient]:
        async with CuttingProxy(server.port, cuts) as proxy:
            service = HttpService(proxy.url)
            try:
                yield CutClient(proxy, service, server.fake)
            finally:
                await service.close()

    return make


@dataclass
class CutClient:
    proxy: CuttingProxy
    service: HttpService
    fake: FakeService
