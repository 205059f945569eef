"""A real server on a port of its own, with the fake service behind it, in the test's own loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import httpx
import pytest_asyncio
import uvicorn
from fastapi import FastAPI

from sandlot.api import create_app
from sandlot.domain.environment import Environment, Recipe, Tier
from sandlot.domain.service import SandboxService
from sandlot.testing.fake import FakeService

KEY = "key-of-the-tests"
RECIPES = (
    Recipe(Environment("base", "sandlot/base:latest")),
    Recipe(Environment("gvisor", "sandlot/base:latest", tier=Tier.RUNSC)),
)


@dataclass
class Live:
    """A server, and a client that knows its key."""

    service: FakeService
    client: httpx.AsyncClient
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def session(self, **body: Any) -> str:
        created = await self.client.post("/v1/sessions", json=body)
        assert created.status_code == 201, created.text
        session_id: str = created.json()["id"]
        return session_id

    async def raw(self, data: bytes, *, timeout: float = 10) -> bytes:
        """What the server answers to these bytes, until it closes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(data)
            return await asyncio.wait_for(reader.read(), timeout)
        finally:
            writer.close()


@cache
def _app(options: tuple[tuple[str, Any], ...]) -> FastAPI:
    """FastAPI takes its time over the first request of each route, so equal apps are one app."""
    return create_app(FakeService(), **dict(options))


@asynccontextmanager
async def serving(service: SandboxService, **options: Any) -> AsyncIterator[int]:
    """The port of a server. Started by hand: ``serve`` looks for its end only ten times a second."""
    app = _app(tuple(sorted({"api_key": KEY, **options}.items())))
    app.state.host = service
    config = uvicorn.Config(
        app,
        host="127.0.0.1",
        port=0,
        http="httptools",
        ws="websockets-sansio",
        lifespan="off",
        log_config=None,
        log_level="critical",
    )
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.force_exit = True
        await server.shutdown()


@asynccontextmanager
async def living(**options: Any) -> AsyncIterator[Live]:
    service = FakeService(recipes=RECIPES)
    async with (
        serving(service, **options) as port,
        httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", headers={"Authorization": f"Bearer {KEY}"}, timeout=20
        ) as client,
    ):
        try:
            yield Live(service, client, port)
        finally:
            await service.close()


@pytest_asyncio.fixture
async def live() -> AsyncIterator[Live]:
    async with living() as live:
        yield live
