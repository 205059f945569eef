"""``recording``: downloads what a session's commands wrote, for replay."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from sandlot.cli.connection import with_client

if TYPE_CHECKING:
    from sandlot.client.async_client import AsyncClient


def register(app: typer.Typer) -> None:
    app.command()(recording)


def recording(
    ctx: typer.Context,
    session: Annotated[str, typer.Argument(metavar="SESSION", help="The session's id. It may have ended.")],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Write to this file instead of stdout."),
    ] = None,
    local: Annotated[
        bool, typer.Option("--local", help="Read a recording of `sandlot run --local`, without a server.")
    ] = False,
) -> None:
    """Download the recording of a session.

    Create the session with --record. The recording is an asciicast (version 2). To replay it:
    `sandlot recording SESSION | asciinema play -`
    """
    from sandlot.cli.terminal import display

    async def work(client: AsyncClient) -> None:
        pieces = (await client.opened()).read_recording(session)
        # Read before the file is opened: without a recording, an older file stays as it is.
        first = await anext(pieces, b"")
        with ExitStack() as stack:
            file: BinaryIO = sys.stdout.buffer if output is None else stack.enter_context(output.open("wb"))
            file.write(first)
            async for piece in pieces:
                file.write(piece)
            file.flush()

    try:
        with_client(ctx, work, local=local)
    except BrokenPipeError:
        raise typer.Exit(display.BROKEN_PIPE) from None
