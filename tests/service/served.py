"""A service behind HTTP, on a free port of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import uvicorn

from sandlot.api import create_app
from sandlot.domain.service import SandboxHost


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # they are pytest's


@contextlib.asynccontextmanager
async def served(host: SandboxHost, *, api_key: str | None = None, **app_options: Any) -> AsyncIterator[str]:
    """Gives the URL; uvicorn is set up as ``sandlot serve`` sets it up. ``app_options``: of ``create_app``."""
    async with served_app(create_app(host, api_key=api_key, **app_options)) as url:
        yield url


@contextlib.asynccontextmanager
async def served_app(app: Any) -> AsyncIterator[str]:
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        app,
        http="httptools",
        ws="websockets-sansio",
        lifespan="off",
        access_log=False,
        log_config=None,
        timeout_graceful_shutdown=2,
    )
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        while not server.started:
            await asyncio.sleep(0.01)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving
        listening.close()
