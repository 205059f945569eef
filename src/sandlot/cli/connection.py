"""Creates a client for one command: of a named server, of the one on this machine, or a local one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

import typer

from sandlot.client.extras import import_extra
from sandlot.domain.errors import Unauthorized, Unavailable

if TYPE_CHECKING:
    from sandlot.client.async_client import AsyncClient

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The global options that say which server to use. An empty value counts as not given."""

    url: str | None
    api_key: str | None = field(default=None, repr=False)


def with_client(
    ctx: typer.Context,
    work: Callable[[AsyncClient], Awaitable[T]],
    *,
    local: bool = False,
    or_local: bool = False,
    quiet: bool = False,
) -> T:
    """Run ``work`` with a client of the server: the one that the options name, or that runs here.

    ``local``: use a worker in this process instead of a server. ``or_local``: do so if no server
    runs here, and say which of the two was chosen. A server that refuses the command is an error,
    never a reason to run it locally. ``quiet``: print no progress and no choice.
    """

    async def run() -> T:
        choice = _local_client(quiet=quiet) if local else await _choose(ctx.obj, or_local, quiet)
        async with choice as client:
            return await work(client)

    return asyncio.run(run())


def server_module(name: str, needed_by: str = "this command") -> ModuleType:
    """Import a module of the server, or raise an error that says how to install what it needs."""
    return import_extra(name, extra="server", needed_by=needed_by)


async def server_url(options: ServerOptions, *, quiet: bool = False) -> str:
    """Return the URL of the server that the options name, or that runs here."""
    from sandlot.cli.discovery import find_server, unannounced_server

    if options.url:
        return options.url
    found = await find_server(quiet=quiet)
    if found is not None:
        return found.url
    advice = (
        await unannounced_server() or "Start one with `sandlot serve`, or name one: sandlot --url URL COMMAND"
    )
    raise Unavailable(f"No server found on this machine. {advice}")


async def _choose(
    options: ServerOptions, or_local: bool, quiet: bool
) -> AbstractAsyncContextManager[AsyncClient]:
    from sandlot.cli.discovery import find_server, unannounced_server
    from sandlot.cli.terminal.display import ago, note

    if options.url or not or_local:
        return _server_client(await server_url(options, quiet=quiet), options.api_key)
    found = await find_server(quiet=quiet)
    if found is not None:
        if not quiet:
            note(f"Using the server at {found.url} (started {ago(found.started_at)}).")
        return _server_client(found.url, options.api_key)
    server_module("sandlot.wiring", needed_by="No server was found, and running locally")
    if not quiet:
        note(f"No server found; running locally with Docker. {await unannounced_server()}".rstrip())
    return _local_client(quiet=quiet)


@asynccontextmanager
async def _server_client(url: str, api_key: str | None) -> AsyncIterator[AsyncClient]:
    from sandlot.client.async_client import AsyncClient

    async with AsyncClient(url, api_key=api_key) as client:
        try:
            yield client
        except Unauthorized as error:
            raise Unauthorized(
                f"The server at {url} refused this command: {error.message}", details=error.details
            ) from error


@asynccontextmanager
async def _local_client(*, quiet: bool = False) -> AsyncIterator[AsyncClient]:
    from sandlot.cli.terminal.display import note_if_slow
    from sandlot.client.async_client import AsyncClient

    server_module("sandlot.wiring")
    # One command needs no warm sandboxes. The command, not the worker, decides which sessions stay.
    client = AsyncClient.local(keep_sessions=True, pool_size=0, min_pool_size=0, max_pool_size=0)
    with note_if_slow("Starting a local worker.", quiet=quiet):
        await client.opened()
    try:
        yield client
    finally:
        with note_if_slow("Stopping the local worker.", quiet=quiet):
            await client.aclose()
