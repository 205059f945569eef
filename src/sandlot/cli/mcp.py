"""``mcp``: offers a sandbox as tools to one MCP client, on standard input and output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sandlot.cli.connection import with_client
from sandlot.cli.run import Local, Thread
from sandlot.client.extras import import_extra

if TYPE_CHECKING:
    from sandlot.client.async_client import AsyncClient


def register(app: typer.Typer) -> None:
    app.command()(mcp)


def mcp(
    ctx: typer.Context,
    thread: Thread = None,
    environment: Annotated[
        str | None, typer.Option("--environment", metavar="NAME", help="Environment for the new session.")
    ] = None,
    local: Local = False,
) -> None:
    """Run an MCP server on stdin and stdout.

    It has one sandbox, for the client that starts this command. Without --thread, the sandbox is
    deleted when the client disconnects. See docs/howto/mcp.md.
    """
    stdio = import_extra("sandlot.integrations.mcp.stdio", extra="mcp", needed_by="this command")

    async def work(client: AsyncClient) -> None:
        await stdio.serve_stdio(client, thread=thread, environment=environment)

    with_client(ctx, work, local=local)
