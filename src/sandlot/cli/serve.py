"""``serve``: runs the server on this machine.

The other servers share its options and event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any

import typer

from sandlot.cli.connection import server_module
from sandlot.domain.errors import SandlotError

Host = Annotated[
    str | None, typer.Option("--host", metavar="HOST", help="Address to listen on.", show_default="127.0.0.1")
]
Port = Annotated[
    int | None, typer.Option("--port", metavar="PORT", help="Port to listen on.", show_default="8000")
]
DataDir = Annotated[Path | None, typer.Option(metavar="DIR", help="Folder for records, secrets and sockets.")]
Registry = Annotated[
    Path | None,
    typer.Option(
        "--registry", metavar="DIR", help="Folder with your own environments, tools, prompts and agents."
    ),
]


def register(app: typer.Typer) -> None:
    app.command()(serve)


def serve(
    host: Host = None, port: Port = None, data_dir: DataDir = None, registry_dir: Registry = None
) -> None:
    """Run the server.

    It serves the HTTP API and creates sandboxes with this machine's Docker. Every setting, including
    these options, is also a SANDLOT_… variable: docs/reference/settings.md.
    """
    settings = server_module("sandlot.config.reading").server_settings(
        host=host, port=port, data_dir=data_dir, registry_dir=registry_dir
    )
    run(server_module("sandlot.wiring").serve(settings))


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run a server on uvloop until it ends."""
    uvloop, logs = server_module("uvloop"), server_module("sandlot.wiring.logs")
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(work)
    except (SandlotError, OSError) as error:
        if not logs.log_exit(error):
            raise
        raise typer.Exit(1) from error
