"""``worker`` and ``coordinator``: the processes of a fleet."""

from __future__ import annotations

from types import ModuleType
from typing import Annotated, Any

import typer

from sandlot.cli.connection import server_module
from sandlot.cli.serve import DataDir, Host, Port, Registry, run
from sandlot.client.extras import module_of_extra

worker_app = typer.Typer(help="A worker of a fleet.", rich_markup_mode=None)


@worker_app.callback(invoke_without_command=True)
def worker(
    ctx: typer.Context,
    host: Host = None,
    port: Port = None,
    data_dir: DataDir = None,
    registry_dir: Registry = None,
    worker_id: Annotated[str | None, typer.Option("--id", help="Its name; stays the same.")] = None,
    advertise_url: Annotated[str | None, typer.Option(help="How others reach it.")] = None,
) -> None:
    """Serve sandboxes of this machine to a fleet, until it is told to stop.

    The fleet's Redis and keys are set by variables SANDLOT_…: docs/reference/settings.md.
    """

    def read() -> tuple[Any, Any]:
        return (
            _member_settings().member_settings(
                host=host, port=port, data_dir=data_dir, registry_dir=registry_dir, worker_id=worker_id
            ),
            _member_settings().fleet_settings(advertise_url=advertise_url),
        )

    ctx.obj = read  # not yet: who asks for a command's help has perhaps set nothing
    if ctx.invoked_subcommand is None:
        run(_wiring().serve_worker(*read()))


@worker_app.command()
def drain(ctx: typer.Context) -> None:
    """Let this machine's worker take no new sessions; those that it has go on.

    When they have ended, or at any time, stop it: its sandboxes stay, and the next start takes them over.
    """
    run(_wiring().set_draining(*ctx.obj(), draining=True))
    print("draining")


@worker_app.command()
def undrain(ctx: typer.Context) -> None:
    """Let this machine's worker take new sessions again, after a drain."""
    run(_wiring().set_draining(*ctx.obj(), draining=False))
    print("taking sessions")


def coordinator(host: Host = None, port: Port = None, registry_dir: Registry = None) -> None:
    """Serve a whole fleet's API: find the right worker for each request, until it is told to stop.

    The fleet's Redis and keys are set by variables SANDLOT_…: docs/reference/settings.md.
    """
    settings = server_module("sandlot.config.settings").server_settings(
        host=host, port=port, registry_dir=registry_dir
    )
    run(_wiring().serve_coordinator(settings, _member_settings().fleet_settings()))


def _member_settings() -> ModuleType:
    return server_module("sandlot.config.fleet_settings")


def _wiring() -> ModuleType:
    return module_of_extra("sandlot.wiring.fleet", extra="fleet", who="a fleet")
