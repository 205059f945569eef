"""``fleet status|workers|sessions|drain|undrain``: an operator's view, from a coordinator. And ``keygen``."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from sandlot.client.http.fleet import FleetOperator
    from sandlot.wire.fleet_bodies import FleetBody, PlacedSessionBody, WorkerBody

T = TypeVar("T")

app = typer.Typer(
    help="Show and manage a fleet.\n\nAll commands but keygen need a coordinator: name it with --url or "
    "SANDLOT_URL.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Worker = Annotated[str, typer.Argument(metavar="WORKER", help="The worker's id.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
LOOK_EVERY_S = 2.0
COLUMNS = (
    *("WORKER", "STATE", "SESSIONS", "WARM", "FREE", "MEMORY", "CORES", "PROCESSES", "DISK FREE"),
    *("LEASE", "VERSION", "URL"),
)


@app.command()
def status(ctx: typer.Context, as_json: Json = False) -> None:
    """Show a summary of the fleet."""
    from sandlot.cli.terminal import display

    fleet = _with_operator(ctx, lambda operator: operator.fleet())
    if as_json:
        display.print_json(fleet)
        return
    states = Counter(_state(worker) for worker in fleet.workers)
    display.print_fields(
        [
            ("workers", ", ".join(f"{count} {state}" for state, count in states.items()) or "none"),
            ("sessions", str(fleet.sessions)),
            ("being created", str(fleet.reservations)),
            ("warm", str(sum(worker.warm for worker in _alive(fleet)))),
            ("free", str(sum(worker.free for worker in _alive(fleet)))),
            ("directory", "complete" if fleet.settled else "rebuilding from the workers"),
            *((worker.id, problem) for worker in _alive(fleet) for problem in worker.problems),
        ]
    )


@app.command()
def workers(
    ctx: typer.Context,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh every second until Ctrl-C.")] = False,
    as_json: Json = False,
) -> None:
    """List the workers with used and free capacity."""
    from sandlot.cli.terminal import display

    if watch and sys.stdout.isatty():
        _with_operator(ctx, _watch)
        return
    fleet = _with_operator(ctx, lambda operator: operator.fleet())
    if as_json:
        display.print_json(fleet.workers)
    else:
        display.print_table(COLUMNS, [_row(worker) for worker in fleet.workers], unwrapped="WORKER")


@app.command()
def sessions(
    ctx: typer.Context,
    worker: Annotated[
        str | None, typer.Option("--worker", metavar="WORKER", help="List only this worker's sessions.")
    ] = None,
    tenant: Annotated[
        str | None,
        typer.Option(
            "--tenant", metavar="TENANT", help="List this tenant's sessions.", show_default="your own tenant"
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List a tenant's sessions and the worker of each."""
    from sandlot.cli.terminal import display

    async def work(operator: FleetOperator) -> list[PlacedSessionBody]:
        return [
            placed
            async for placed in operator.placed_sessions(tenant)
            if worker is None or placed.worker == worker
        ]

    placed = _with_operator(ctx, work)
    if as_json:
        display.print_json(placed)
        return
    display.print_table(
        ("SESSION", "WORKER", "WORKER STATE", "THREAD", "ENVIRONMENT", "STATE"),
        [
            (
                one.session.id,
                one.worker,
                one.worker_state,
                one.session.thread or "-",
                one.session.environment,
                one.session.state,
            )
            for one in placed
        ],
        unwrapped="SESSION",
    )


@app.command()
def drain(
    ctx: typer.Context,
    worker: Worker,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until the worker has no session of any tenant left.")
    ] = False,
) -> None:
    """Tell a worker to take no new sessions.

    Existing sessions continue.
    """

    async def work(operator: FleetOperator) -> None:
        await operator.set_draining(worker, True)
        print(f"{worker} is draining", flush=True)
        if wait:
            await _wait_until_empty(operator, worker)
            print(f"{worker} has no sessions left")

    _with_operator(ctx, work)


@app.command()
def undrain(ctx: typer.Context, worker: Worker) -> None:
    """Tell a draining worker to take new sessions again."""
    _with_operator(ctx, lambda operator: operator.set_draining(worker, False))
    print(f"{worker} accepts new sessions")


@app.command()
def keygen(
    kid: Annotated[
        str | None,
        typer.Option("--id", metavar="ID", help="Name of the pair. Default: today's date and a number."),
    ] = None,
    into: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Write the keys to the files fleet-private-key and fleet-public-keys in this folder.",
        ),
    ] = None,
) -> None:
    """Create a pair of keys for a fleet.

    Coordinators sign tokens with the private key. Workers verify them with the public key, and can
    sign none.
    """
    from sandlot.client.extras import import_extra

    signing = import_extra("sandlot.fleet.signing_keys", extra="fleet", needed_by="a fleet")
    key = signing.SigningKey.generate(kid or f"{datetime.now(UTC):%Y%m%d}-{secrets.randbelow(9000) + 1000}")
    if into is None:
        print("# coordinators; secret")
        print(f"{signing.PRIVATE_VARIABLE}={key.text}")
        print("# workers")
        print(f"{signing.PUBLIC_VARIABLE}={key.public.text}")
        return
    # The private key last: without it, the other file can be removed and nothing was lost.
    for name, text in (("fleet-public-keys", key.public.text), ("fleet-private-key", key.text)):
        print(f"created {_create_private(into / name, text)}")


def _create_private(file: Path, text: str) -> Path:
    """Create a file that only its owner can read. Never replaces one: it may be a fleet's only copy."""
    from sandlot.domain.errors import InvalidRequest

    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise InvalidRequest(f"Cannot create {file}: {error.strerror}.") from error
    with os.fdopen(descriptor, "w", encoding="utf-8") as made:
        made.write(text + "\n")
    return file


def _with_operator(ctx: typer.Context, work: Callable[[FleetOperator], Awaitable[T]]) -> T:
    from sandlot.client.http.fleet import FleetOperator
    from sandlot.config.client_settings import client_settings
    from sandlot.domain.errors import InvalidRequest

    settings = client_settings(ctx.obj.url, ctx.obj.api_key)
    if not ctx.obj.url:  # not the default address: the key must not go to an unknown program there
        raise InvalidRequest(
            "Name a coordinator of the fleet: sandlot --url URL fleet COMMAND, or set SANDLOT_URL."
        )

    async def run() -> T:
        operator = FleetOperator(settings.url, settings.api_key)
        try:
            return await work(operator)
        finally:
            await operator.close()

    return asyncio.run(run())


async def _wait_until_empty(operator: FleetOperator, worker_id: str) -> None:
    """Say on stderr how many sessions are left whenever that changes."""
    from sandlot.cli.terminal.display import note
    from sandlot.domain.errors import Unavailable

    told = 0
    while True:
        worker = next((one for one in (await operator.fleet()).workers if one.id == worker_id), None)
        # The worker knows of new sessions first. The directory knows what a stopped worker left.
        if worker is None or not (left := max(worker.sessions, worker.recorded)):
            return
        if worker.state == "gone":
            raise Unavailable(
                f"Worker {worker_id} is gone and left {left} sessions behind. Start it again, or let their "
                "clients recreate them.",
                retryable=False,
            )
        if left != told:
            note(f"{worker_id} has {left} session{'s' if left > 1 else ''} left")
            told = left
        await asyncio.sleep(LOOK_EVERY_S)


async def _watch(operator: FleetOperator) -> None:
    from rich.live import Live

    with Live(_table(await operator.fleet()), auto_refresh=False) as live:
        while True:
            await asyncio.sleep(1)
            live.update(_table(await operator.fleet()), refresh=True)


def _table(fleet: FleetBody) -> Table:
    from rich.table import Table
    from rich.text import Text

    from sandlot.domain.text.printable import escape_unprintable

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in COLUMNS:
        table.add_column(column)
    for worker in fleet.workers:
        style = "" if _state(worker) in ("alive", "draining") else "red"
        table.add_row(*(Text(escape_unprintable(cell), style=style) for cell in _row(worker)))
    return table


def _row(worker: WorkerBody) -> tuple[str, ...]:
    return (
        worker.id,
        _state(worker),
        str(worker.sessions),
        str(worker.warm),
        str(worker.free),
        *_machine(worker),
        f"{worker.lease_left_s:.1f}s",
        worker.version,
        worker.url,
    )


def _machine(worker: WorkerBody) -> tuple[str, str, str, str]:
    """Return how much of each resource is given to sandboxes, and the free disk space."""
    from sandlot.cli.terminal.display import size

    use = worker.machine
    if use is None:
        return "-", "-", "-", "-"
    given, total = use.given, use.total
    return (
        f"{size(given.memory_bytes)} of {size(total.memory_bytes)}",
        f"{given.cpus:g} of {total.cpus:g}",
        f"{given.pids} of {total.pids}",
        "-" if use.disk_free_bytes is None else size(use.disk_free_bytes),
    )


def _state(worker: WorkerBody) -> str:
    if worker.state != "alive":
        return worker.state
    if not worker.trusts:
        return "wrong keys"
    return "draining" if worker.draining else "alive"


def _alive(fleet: FleetBody) -> list[WorkerBody]:
    return [worker for worker in fleet.workers if worker.state == "alive"]
