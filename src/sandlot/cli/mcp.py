"""``mcp``: a sandbox as tools for one MCP client, on standard input and output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sandlot.cli.connection import with_client
from sandlot.cli.run import Local
from sandlot.client.extras import module_of_extra

if TYPE_CHECKING:
    from sandlot.client.async_client import AsyncClient


def register(app: typer.Typer) -> None:
    app.command()(mcp)


def mcp(
    ctx: typer.Context,
    thread: Annotated[
        str | None, typer.Option(help="Use this conversation's sandbox; it is kept for the next time.")
    ] = None,
    environment: Annotated[
        str | None, typer.Option("--environment", help="The environment of a new sandbox.")
    ] = None,
    local: Local = False,
) -> None:
    """Serve a sandbox over MCP on standard input and output, for a client that starts this command.

    Without --thread the sandbox is new, and it is deleted when the client ends us. See docs/howto/mcp.md.
    """
    stdio = module_of_extra("sandlot.integrations.mcp.stdio", extra="mcp", who="this command")

    async def work(client: AsyncClient) -> None:
        await stdio.serve_stdio(client, thread=thread, environment=environment)

    with_client(ctx, work, local=local)
