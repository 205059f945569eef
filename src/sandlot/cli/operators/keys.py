"""``keys create|list|revoke|rotate``: the API keys of a server or a fleet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sandlot.cli.chosen import parse_time
from sandlot.cli.operators.administration import with_administrator

if TYPE_CHECKING:
    from sandlot.client.http.administrator import Administrator
    from sandlot.wire.key_bodies import KeyBody, NewKeyBody

app = typer.Typer(
    help="Create and manage API keys.\n\nThe server needs SANDLOT_API_KEY, the administrator's key. Pass "
    "that key, or one with the scope admin.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Key = Annotated[str, typer.Argument(metavar="KEY_ID", help="The key's id, as `sandlot keys list` shows it.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def create(
    ctx: typer.Context,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="What you call the key, such as the program that uses it.")
    ],
    tenant: Annotated[
        str | None,
        typer.Option(
            "--tenant", metavar="TENANT", help="Whose sessions the key sees.", show_default="your own tenant"
        ),
    ] = None,
    scopes: Annotated[
        list[str] | None,
        typer.Option(
            "--scope",
            metavar="SCOPE",
            help="What the key may do: sessions:read, sessions:write, exec, files, network, admin, "
            "metrics:read or fleet:operate. Can be repeated.",
            show_default="sessions:read, sessions:write, exec, files, network",
        ),
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="When the key ends: 12h, 30d.", show_default="never"),
    ] = None,
    limits: Annotated[
        list[str] | None,
        typer.Option(
            "--limit",
            metavar="LIMIT=NUMBER",
            help="Limit what the key's holder may use, beside the tenant's limits: sessions=N, cpus=N, "
            "memory_mb=N, execs=N, creates_per_s=N or calls_per_s=N. Can be repeated.",
            show_default="none",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Create a key and print it.

    The key is shown once. The server keeps only a digest of it.
    """
    from sandlot.domain.callers.limits import parse_limits
    from sandlot.wire.key_bodies import CreateKeyBody
    from sandlot.wire.tenant_bodies import LimitsBody

    expires_in_s = None if expires is None else _seconds(expires)
    asked = None if limits is None else LimitsBody.of(parse_limits(" ".join(limits)))
    body = CreateKeyBody(name, tenant, scopes or None, expires_in_s, asked)
    _show_new(with_administrator(ctx, lambda server: server.create_key(body)), as_json)


@app.command("list")
def list_keys(
    ctx: typer.Context,
    tenant: Annotated[
        str | None, typer.Option("--tenant", metavar="TENANT", help="List only the keys of this tenant.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the keys that you manage."""
    from sandlot.cli.terminal import display

    async def work(server: Administrator) -> list[KeyBody]:
        return [key async for key in server.keys(tenant)]

    keys = with_administrator(ctx, work)
    if as_json:
        display.print_json(keys)
        return
    display.print_table(
        ("KEY ID", "NAME", "TENANT", "STATE", "SCOPES", "ENDS WITH", "CREATED", "EXPIRES", "LAST USED"),
        [
            (
                key.id,
                key.name,
                key.tenant,
                key.state,
                " ".join(key.scopes),
                f"…{key.hint}",
                display.timestamp(key.created_at),
                "never" if key.expires_at is None else display.timestamp(key.expires_at),
                "never" if key.last_used_at is None else display.timestamp(key.last_used_at),
            )
            for key in sorted(keys, key=lambda key: key.created_at)
        ],
        unwrapped="KEY ID",
    )


@app.command()
def revoke(
    ctx: typer.Context,
    keys: Annotated[list[str], typer.Argument(metavar="KEY_ID...", help="The keys' ids.")],
) -> None:
    """Revoke keys.

    All servers refuse them within 5 seconds, and close the connections that use them.
    """

    async def work(server: Administrator) -> None:
        for key in keys:
            print(f"{(await server.revoke_key(_key_id(key))).id} is revoked")

    with_administrator(ctx, work)


@app.command()
def rotate(
    ctx: typer.Context,
    key: Key,
    grace: Annotated[
        str, typer.Option(metavar="TIME", help="How long the old key goes on working: 30m, 1h.")
    ] = "0",
    as_json: Json = False,
) -> None:
    """Replace a key with a new one, and print it.

    The new key may do the same. Without --grace, the old key ends at once.
    """
    seconds = _seconds(grace, none_allowed=True)
    _show_new(with_administrator(ctx, lambda server: server.rotate_key(_key_id(key), seconds)), as_json)


def _key_id(text: str) -> str:
    """The id of a key. A whole key, pasted by mistake, must not get into the server's logs."""
    from sandlot.domain.callers.keys import parse_key

    parsed = parse_key(text)
    return text if parsed is None else parsed[0]


def _show_new(new: NewKeyBody, as_json: bool) -> None:
    from sandlot.cli.terminal import display

    if as_json:
        display.print_json(new)
        return
    key = new.key
    display.note("Keep this key now: it is not shown again.")
    print(new.secret)
    ends = "never expires" if key.expires_at is None else f"expires {display.timestamp(key.expires_at)}"
    display.note(f"Key {key.id} for tenant {key.tenant} ({', '.join(key.scopes)}); {ends}.")


def _seconds(text: str, *, none_allowed: bool = False) -> float:
    seconds = parse_time(text)
    if seconds is None or (seconds == 0 and not none_allowed):
        raise typer.BadParameter("The time must be more than 0. Use 90 (seconds), 30m, 12h or 30d.")
    return seconds
