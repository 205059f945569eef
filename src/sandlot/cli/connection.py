"""Creates a client from the global options, for one command."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

import typer

from sandlot.client.extras import import_extra

if TYPE_CHECKING:
    from sandlot.client.async_client import AsyncClient

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The global options that say which server to use."""

    url: str | None
    api_key: str | None = field(default=None, repr=False)

    def client(self) -> AsyncClient:
        from sandlot.client.async_client import AsyncClient

        return AsyncClient(self.url, api_key=self.api_key)


def with_client(
    ctx: typer.Context,
    work: Callable[[AsyncClient], Awaitable[T]],
    *,
    local: bool = False,
) -> T:
    """Run ``work`` with a client. ``local``: use a worker in this process instead of a server."""

    async def run() -> T:
        async with _local_client() if local else ctx.obj.client() as client:
            return await work(client)

    return asyncio.run(run())


@asynccontextmanager
async def _local_client() -> AsyncIterator[AsyncClient]:
    from sandlot.cli.terminal.display import note_if_slow
    from sandlot.client.async_client import AsyncClient

    server_module("sandlot.wiring")
    # One command needs no warm sandboxes. The command, not the worker, decides which sessions stay.
    client = AsyncClient.local(keep_sessions=True, pool_size=0, min_pool_size=0, max_pool_size=0)
    with note_if_slow("Starting a local worker."):
        await client.opened()
    async with client:
        yield client


def server_module(name: str) -> ModuleType:
    """Import a module of the server, or raise an error that says how to install what it needs."""
    return import_extra(name, extra="server", needed_by="this command")
