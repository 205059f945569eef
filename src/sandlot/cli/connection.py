"""A client from the global options, for the length of one command."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

import typer

from sandlot.client.extras import module_of_extra

if TYPE_CHECKING:
    from sandlot.client.async_client import AsyncClient

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Connection:
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
    """Runs ``work`` on a client; ``local``: with a worker inside this process instead of a server."""

    async def run() -> T:
        async with _local_client() if local else ctx.obj.client() as client:
            return await work(client)

    return asyncio.run(run())


@asynccontextmanager
async def _local_client() -> AsyncIterator[AsyncClient]:
    from sandlot.cli.display import said_if_slow
    from sandlot.client.async_client import AsyncClient

    server_module("sandlot.wiring")
    # For one command nothing is held warm; and which sessions stay is the command's to say, not the worker's.
    client = AsyncClient.local(keep_sessions=True, pool_size=0, min_pool_size=0, max_pool_size=0)
    with said_if_slow("starting a worker in this process"):
        await client.opened()
    async with client:
        yield client


def server_module(name: str) -> ModuleType:
    """A module of the server's part, or a word on how to install what it needs."""
    return module_of_extra(name, extra="server", who="this command")
