"""``serve``: the server on this machine. Its options and its loop are those of all servers."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any

import typer

from sandlot.cli.connection import server_module
from sandlot.domain.errors import SandlotError

Host = Annotated[str | None, typer.Option(help="Address to listen on.", show_default="127.0.0.1")]
Port = Annotated[int | None, typer.Option(help="Port to listen on.", show_default="8000")]
DataDir = Annotated[Path | None, typer.Option(help="Folder of records, secrets and sockets.")]
Registry = Annotated[Path | None, typer.Option("--registry", help="A registry of your own.")]


def register(app: typer.Typer) -> None:
    app.command()(serve)


def serve(
    host: Host = None, port: Port = None, data_dir: DataDir = None, registry_dir: Registry = None
) -> None:
    """Serve sandboxes from this machine's Docker engine, until it is told to stop.

    Everything else is set by variables SANDLOT_…: docs/reference/settings.md.
    """
    settings = server_module("sandlot.config.settings").server_settings(
        host=host, port=port, data_dir=data_dir, registry_dir=registry_dir
    )
    run(server_module("sandlot.wiring").serve(settings))


def run(work: Coroutine[Any, Any, None]) -> None:
    """On uvloop, until it is over."""
    uvloop, logs = server_module("uvloop"), server_module("sandlot.wiring.logs")
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(work)
    except (SandlotError, OSError) as error:
        if not logs.log_end(error):
            raise
        raise typer.Exit(1) from error
