"""``worker`` and ``coordinator``: the processes of a fleet."""

from __future__ import annotations

from types import ModuleType
from typing import Annotated, Any

import typer

from sandlot.cli.connection import server_module
from sandlot.cli.serve import DataDir, Host, Port, Registry, run
from sandlot.client.extras import import_extra

worker_app = typer.Typer(rich_markup_mode=None)


@worker_app.callback(invoke_without_command=True)
def worker(
    ctx: typer.Context,
    host: Host = None,
    port: Port = None,
    data_dir: DataDir = None,
    registry_dir: Registry = None,
    worker_id: Annotated[
        str | None,
        typer.Option("--id", metavar="ID", help="The worker's name. Keep it the same across restarts."),
    ] = None,
    advertise_url: Annotated[
        str | None, typer.Option(metavar="URL", help="Address at which the fleet reaches this worker.")
    ] = None,
) -> None:
    """Run a fleet worker.

    It creates sandboxes with this machine's Docker. The fleet's Redis and public keys are
    SANDLOT_… variables: docs/reference/settings.md.
    """

    def read_settings() -> Any:
        return _reading().member_settings(
            host=host, port=port, data_dir=data_dir, registry_dir=registry_dir, worker_id=worker_id
        )

    ctx.obj = read_settings  # read later: `--help` must work without any settings
    if ctx.invoked_subcommand is None:
        fleet = _reading().worker_fleet_settings(advertise_url=advertise_url)
        run(_wiring().serve_worker(read_settings(), fleet))


@worker_app.command()
def drain(ctx: typer.Context) -> None:
    """Tell the local worker to take no new sessions.

    Run it as the worker's user: it proves itself with a file in the worker's data folder. If you
    started the worker with options, repeat them before `drain`:
    `sandlot worker --data-dir /srv/w1 --host 10.0.0.11 drain`. Existing sessions continue. You can
    stop the worker at any time. Its sandboxes keep running, and it finds them again when it starts.
    """
    run(_wiring().set_draining(ctx.obj(), draining=True))
    print("draining")


@worker_app.command()
def undrain(ctx: typer.Context) -> None:
    """Tell the local worker to take new sessions again."""
    run(_wiring().set_draining(ctx.obj(), draining=False))
    print("accepting new sessions")


def coordinator(host: Host = None, port: Port = None, registry_dir: Registry = None) -> None:
    """Run a fleet coordinator.

    It is one HTTP API for all workers. The fleet's Redis and the private key are SANDLOT_…
    variables: docs/reference/settings.md.
    """
    settings = _reading().server_settings(host=host, port=port, registry_dir=registry_dir)
    run(_wiring().serve_coordinator(settings, _reading().coordinator_fleet_settings()))


def _reading() -> ModuleType:
    return server_module("sandlot.config.reading")


def _wiring() -> ModuleType:
    return import_extra("sandlot.wiring.fleet", extra="fleet", needed_by="a fleet")
