"""``network show|allow|revoke|set|forward|unforward``: what a session's sandbox may connect to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated

import typer

from sandlot.cli.chosen import parse_time
from sandlot.cli.connection import with_client

if TYPE_CHECKING:
    from sandlot.client.async_client import AsyncClient
    from sandlot.client.async_network import AsyncNetwork
    from sandlot.domain.network.status import NetworkStatus

app = typer.Typer(
    help="Show or change what a session may connect to.", no_args_is_help=True, rich_markup_mode=None
)

SessionId = Annotated[str, typer.Argument(metavar="SESSION", help="The session's id.")]
Entries = Annotated[
    list[str],
    typer.Argument(
        metavar="HOST...", help="Hosts or presets, such as example.com, db.example.com:5432 or pypi."
    ),
]
Port = Annotated[int, typer.Argument(metavar="PORT", help="The port on 127.0.0.1 in the sandbox.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def show(ctx: typer.Context, session_id: SessionId, as_json: Json = False) -> None:
    """Show what a session may connect to, and its traffic."""
    _change(ctx, session_id, lambda network: network.status(), as_json)


@app.command()
def allow(
    ctx: typer.Context,
    session_id: SessionId,
    entries: Entries,
    time: Annotated[
        str | None,
        typer.Option("--for", metavar="TIME", help="For how long: 90 (seconds), 30m or 2h. Else for good."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Also allow hosts, for a while or for good."""
    for_s = None if time is None else parse_time(time)
    _change(ctx, session_id, lambda network: network.allow(*entries, for_s=for_s), as_json)


@app.command()
def revoke(ctx: typer.Context, session_id: SessionId, entries: Entries, as_json: Json = False) -> None:
    """Take back what `allow` has allowed.

    Open connections to it end.
    """
    _change(ctx, session_id, lambda network: network.revoke(*entries), as_json)


@app.command("set")
def set_policy(ctx: typer.Context, session_id: SessionId, entries: Entries, as_json: Json = False) -> None:
    """Replace a session's policy.

    `none` allows nothing, `public` every name. All that `allow` has allowed ends.
    """
    _change(ctx, session_id, lambda network: network.set(policy_of(entries) or "none"), as_json)


@app.command()
def forward(
    ctx: typer.Context,
    session_id: SessionId,
    port: Port,
    target: Annotated[
        str, typer.Argument(metavar="HOST:PORT", help="The host outside. The policy must allow it.")
    ],
    as_json: Json = False,
) -> None:
    """Lead a port in the sandbox to a host outside."""
    _change(ctx, session_id, lambda network: network.forward(port, target), as_json)


@app.command()
def unforward(ctx: typer.Context, session_id: SessionId, port: Port, as_json: Json = False) -> None:
    """Close a port that `forward` has opened."""
    _change(ctx, session_id, lambda network: network.unforward(port), as_json)


def policy_of(entries: list[str] | None) -> str | list[str] | None:
    """What ``--network`` means: one word such as ``none``, or hosts and presets."""
    if not entries:
        return None
    return entries[0] if len(entries) == 1 else entries


def _change(
    ctx: typer.Context,
    session_id: str,
    call: Callable[[AsyncNetwork], Awaitable[NetworkStatus]],
    as_json: bool,
) -> None:
    async def work(client: AsyncClient) -> NetworkStatus:
        return await call((await client.get(session_id)).network)

    _print(with_client(ctx, work), as_json)


def _print(status: NetworkStatus, as_json: bool) -> None:
    from sandlot.cli.terminal import display
    from sandlot.wire.network_bodies import NetworkBody

    if as_json:
        display.print_json(NetworkBody.of(status))
        return
    traffic, caps = status.traffic, status.policy.caps
    fields = [
        ("allowed", ", ".join(status.policy.allow) or "nothing"),
        ("denied", ", ".join(status.policy.deny) or "-"),
        *((f"granted {_until(grant.until)}", grant.entry) for grant in status.grants),
        *((f"port {forward.port}", f"leads to {forward.target}") for forward in status.forwards),
        ("connections", f"{traffic.open} of {caps.connections} open, {traffic.connections} so far"),
        ("requests", f"{traffic.requests} made, {traffic.denied} denied"),
        ("sent", display.size(traffic.sent_bytes)),
        ("received", display.size(traffic.received_bytes)),
        *(("was denied", f"{denied.target} ({denied.rule})") for denied in status.denied),
    ]
    display.print_fields(fields)


def _until(until: float | None) -> str:
    from sandlot.cli.terminal import display

    return "for good" if until is None else f"until {display.timestamp(until)}"
