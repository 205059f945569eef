"""The SDK against the real API on a real socket, with the fake service behind, and a proxy that cuts wires."""

from __future__ import annotations

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
from tests.cutting_proxy import Cuts, CuttingProxy

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


@pytest.fixture
def cutting(server: Server) -> Callable[[Cuts], contextlib.AbstractAsyncContextManager[CutClient]]:
    @contextlib.asynccontextmanager
    async def make(cuts: Cuts) -> AsyncIterator[CutClient]:
        async with CuttingProxy(server.port, cuts) as proxy:
            service = HttpService(proxy.url, max_outage_s=0, patience_s=0)
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
