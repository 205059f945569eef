"""The application: global options, commands, and errors as one line plus advice."""

from __future__ import annotations

import sys
from typing import Annotated, NoReturn

import typer

from sandlot.cli import (
    bench,
    catalogue,
    files,
    history,
    images,
    mcp,
    network,
    recording,
    run,
    serve,
    sessions,
)
from sandlot.cli.artifacts import artifacts
from sandlot.cli.code import code, contexts
from sandlot.cli.connection import ServerOptions
from sandlot.cli.doctor import command as doctor
from sandlot.cli.execs import execs
from sandlot.cli.operators import backup, fleet, keys, members, secrets, storage, tenants, webhooks
from sandlot.cli.ports import port_forward, previews
from sandlot.cli.terminal.display import note
from sandlot.cli.top import command as top
from sandlot.cli.volumes import volumes
from sandlot.cli.workspaces import snapshots
from sandlot.domain import errors
from sandlot.domain.errors import UNREACHABLE, SandlotError
from sandlot.domain.text.printable import escape_unprintable

app = typer.Typer(
    name="sandlot",
    help="Self-hosted sandboxes for AI agents.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

# Advice that the error message itself cannot give. The first class that matches is used.
_ADVICE: tuple[tuple[type[SandlotError], str], ...] = (
    (
        errors.Unauthorized,
        "Pass the server's key before the command (sandlot --api-key KEY COMMAND), or set SANDLOT_API_KEY.",
    ),
    (
        errors.SandboxLost,
        "Run `sandlot sessions recreate SESSION` to give the session a new sandbox. Without a "
        "server, use another --thread.",
    ),
    (
        errors.ThreadDiffers,
        "Leave out --environment to use that session as it is, or run `sandlot sessions delete --thread "
        "THREAD` to start over.",
    ),
    (errors.SessionEnded, "Run `sandlot sessions list` to see the active sessions."),
    (
        errors.ImageMissing,
        "To build the shipped images, run `sandlot images build` on the machine that runs the sandboxes.",
    ),
    (errors.EngineProblem, "Run `sandlot doctor` on the machine that runs the sandboxes."),
)


def _print_version(asked: bool) -> None:
    if asked:
        version()
        raise typer.Exit


@app.callback()
def options(
    ctx: typer.Context,
    url: Annotated[
        str | None,
        typer.Option(
            "--url",
            metavar="URL",
            envvar="SANDLOT_URL",
            help="The server's address. Goes before the command: `sandlot --url URL run ls`.",
            show_default="the server that you run on this machine",
        ),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            envvar="SANDLOT_API_KEY",
            help="The server's API key. Goes before the command, like --url.",
            show_envvar=True,
        ),
    ] = None,
    show_version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit."),
    ] = False,
) -> None:
    ctx.obj = ServerOptions(url, api_key)


@app.command()
def version() -> None:
    """Print the version."""
    import platform

    import sandlot

    print(f"sandlot {sandlot.__version__} (Python {platform.python_version()})")


for module in (run, execs, code, history, top, recording, previews, port_forward, serve, mcp, doctor, bench):
    module.register(app)
app.command()(members.coordinator)
for name, group in (
    ("worker", members.worker_app),
    ("fleet", fleet.app),
    ("sessions", sessions.app),
    ("snapshots", snapshots.app),
    ("artifacts", artifacts.app),
    ("volumes", volumes.app),
    ("contexts", contexts.app),
    ("network", network.app),
    ("keys", keys.app),
    ("tenants", tenants.app),
    ("webhooks", webhooks.app),
    ("secrets", secrets.app),
    ("files", files.app),
    ("env", catalogue.env_app),
    ("registry", catalogue.registry_app),
    ("images", images.app),
    ("storage", storage.app),
    ("backup", backup.app),
):
    app.add_typer(group, name=name)


def main() -> NoReturn:
    try:
        app()
    except SandlotError as error:
        report(error)
        sys.exit(1)
    except OSError as error:
        note(str(error) or type(error).__name__)
        sys.exit(1)
    sys.exit(0)


def report(error: SandlotError) -> None:
    """Print an error with advice and the request's id to stderr."""
    note(error.message)
    advice = next((text for kind, text in _ADVICE if isinstance(error, kind)), None)
    # A coordinator reports an unreachable worker with the same reason. Then a server has answered.
    if error.details.get("reason") == UNREACHABLE and "request_id" not in error.details:
        advice = "To use another server: sandlot --url URL COMMAND, or set SANDLOT_URL."
    if advice is not None:
        print(f"  {advice}", file=sys.stderr)
    if request_id := error.details.get("request_id"):
        print(f"  request {escape_unprintable(str(request_id))}", file=sys.stderr)
