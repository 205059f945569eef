"""``top``: opens the live view. Textual is imported here, when the command runs, and nowhere earlier."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from sandlot.cli.connection import ServerOptions


def register(app: typer.Typer) -> None:
    app.command()(top)


def top(ctx: typer.Context) -> None:
    """Watch a server or a fleet, live.

    Needs the extra `top`. Enter opens a session, k kills a command, d deletes a session, q quits.
    """
    import asyncio

    from sandlot.client.extras import import_extra
    from sandlot.domain.errors import InvalidRequest

    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InvalidRequest(
            "sandlot top needs a terminal. In a script, use `sandlot sessions list` or `sandlot history`."
        )
    import_extra("textual", extra="top", needed_by="sandlot top")
    asyncio.run(_watch(ctx.obj))


async def _watch(options: ServerOptions) -> None:
    from sandlot.cli.connection import server_url
    from sandlot.cli.top.app import TopApp
    from sandlot.cli.top.source import Source
    from sandlot.client.async_client import AsyncClient
    from sandlot.client.http.fleet import FleetOperator
    from sandlot.config.client_settings import client_settings

    settings = client_settings(await server_url(options), options.api_key)
    service = FleetOperator(settings.url, settings.api_key)
    try:
        source = Source(AsyncClient(service=service))
        # A wrong key, for example, is an error of the command, not a line in the view.
        await source.sessions()
        await TopApp(source, settings.url).run_async()
    finally:
        await service.close()
