"""A real worker whose sandboxes may reach stand-ins on loopback, and the stand-ins.

The worker is in this process, so names of ``.test`` resolve as the tests say.
"""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from sandlot.client.async_client import AsyncClient
from sandlot.client.async_session import AsyncSession
from sandlot.wiring import LocalWorker, local_service
from tests.unit.network.rig import Authority, new_authority, resolving

ENVIRONMENTS = {"runc": "base", "runsc": "gvisor"}
# What the tests need of a worker: its sandboxes reach loopback, and a policy may name any port.
OPEN = {"egress_allow": ("127.0.0.0/8",), "egress_ceiling": ("any",)}


async def open_worker(data_dir: Path, **options: object) -> LocalWorker:
    # By the whole path: the same after a restart, and no other worker's. Two of one id remove each other's sandboxes.
    number = hashlib.sha256(str(data_dir).encode()).hexdigest()[:8]
    return await local_service(
        worker_id=f"test-network-{number}",
        data_dir=data_dir,
        max_pool_size=3,
        overcommit_memory=100,
        overcommit_cpus=1000,
        **{"pool_size": 2, "min_pool_size": 1, **OPEN, **options},
    )


@asynccontextmanager
async def opened_worker(**options: object) -> AsyncIterator[LocalWorker]:
    """A worker with a folder of its own, which goes with it."""
    data_dir = Path(tempfile.mkdtemp(prefix="sandlot-test-"))
    try:
        service = await open_worker(data_dir, **options)
        try:
            yield service
        finally:
            await service.close()
    finally:
        shutil.rmtree(data_dir, ignore_errors=True)


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def worker() -> AsyncIterator[LocalWorker]:
    async with opened_worker() as service:
        yield service


@pytest.fixture(params=ENVIRONMENTS)
def environment(request: pytest.FixtureRequest) -> str:
    return ENVIRONMENTS[request.param]


@pytest_asyncio.fixture(loop_scope="session")
async def session(worker: LocalWorker, environment: str) -> AsyncIterator[AsyncSession]:
    """A session without a policy."""
    async with AsyncClient(service=worker).create(environment) as session:
        yield session


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """``a.test`` and ``b.test`` are stand-ins on loopback. Gives the names that were asked for."""
    return resolving(monkeypatch, a=["127.0.0.1"], b=["127.0.0.1"])


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return new_authority(tmp_path)


async def serve_folder(folder: Path, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A small web server for files, enough for pip's simple index and git's dumb protocol."""
    while head := await reader.readuntil(b"\r\n\r\n"):
        path = folder / head.split(b" ")[1].decode().split("?")[0].strip("/")
        if path.is_dir():
            path = path / "index.html"
        body = path.read_bytes() if path.is_file() else b"nothing here"
        status = "200 OK" if path.is_file() else "404 Not Found"
        kind = "text/html" if path.suffix == ".html" else "application/octet-stream"
        lines = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(lines.encode() + body)
        await writer.drain()
