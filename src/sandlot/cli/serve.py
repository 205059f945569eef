"""``serve``: the server on this machine."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from sandlot.cli.connection import server_module


def register(app: typer.Typer) -> None:
    app.command()(serve)


def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on.", show_default="127.0.0.1")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on.", show_default="8000")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder of records, secrets and sockets.")] = None,
    registry_dir: Annotated[Path | None, typer.Option("--registry", help="A registry of your own.")] = None,
) -> None:
    """Serve sandboxes from this machine's Docker engine, until it is told to stop.

    Everything else is set by variables SANDLOT_…: docs/reference/settings.md.
    """
    settings = server_module("sandlot.config.settings").server_settings(
        host=host, port=port, data_dir=data_dir, registry_dir=registry_dir
    )
    wiring = server_module("sandlot.wiring")
    uvloop = server_module("uvloop")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(wiring.serve(settings))
