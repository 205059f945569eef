"""``tenants list|show|limit|policy``: what tenants may use and do, and what they use now."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Annotated

import typer

from sandlot.cli.operators.administration import with_administrator

if TYPE_CHECKING:
    from sandlot.client.http.administrator import Administrator
    from sandlot.wire.tenant_bodies import LimitsBody, TenantBody

app = typer.Typer(
    help="Show and set limits and policies of tenants.\n\nA tenant owns sessions. "
    "Each API key belongs to one (`sandlot keys create --tenant`).",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Tenant = Annotated[str, typer.Argument(metavar="TENANT", help="The tenant's name.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_NONE = "none"


@app.command("list")
def list_tenants(ctx: typer.Context, as_json: Json = False) -> None:
    """List tenants with limits or policies of their own."""

    async def work(server: Administrator) -> list[TenantBody]:
        return [tenant async for tenant in server.tenants()]

    _show(with_administrator(ctx, work), as_json)


@app.command()
def show(ctx: typer.Context, tenant: Tenant, as_json: Json = False) -> None:
    """Show a tenant's use, limits and policy."""
    _show([with_administrator(ctx, lambda server: server.tenant(tenant))], as_json)


@app.command()
def limit(
    ctx: typer.Context,
    tenant: Tenant,
    limits: Annotated[
        list[str],
        typer.Argument(
            metavar="LIMIT=NUMBER...",
            help="One or more of "
            "sessions=N, cpus=N, memory_mb=N, execs=N, creates_per_s=N or calls_per_s=N. N is a number, "
            "or none to take the limit away.",
        ),
    ],
    as_json: Json = False,
) -> None:
    """Set limits of a tenant.

    The limits that you do not name stay as they are. All servers apply them within 5 seconds. What the
    tenant already uses stays, even above a new limit.
    """
    from sandlot.domain.callers.limits import parse_limits

    parse_limits(" ".join(f"{text.partition('=')[0]}=1" for text in limits))  # unknown or twice?
    cleared = [text.partition("=")[0] for text in limits if text.partition("=")[2] == _NONE]
    parsed = parse_limits(" ".join(text for text in limits if text.partition("=")[2] != _NONE))
    given = {field.name: getattr(parsed, field.name) for field in fields(parsed)}
    changes = {name: value for name, value in given.items() if value is not None} | dict.fromkeys(cleared)

    async def work(server: Administrator) -> TenantBody:
        own = (await server.tenant(tenant)).own_limits
        return await server.set_limits(tenant, replace(own, **changes))

    _show([with_administrator(ctx, work)], as_json)


@app.command()
def policy(
    ctx: typer.Context,
    tenant: Tenant,
    name: Annotated[
        str,
        typer.Argument(
            metavar="POLICY", help="A policy of the server's registry, or none to take the tenant's away."
        ),
    ],
    as_json: Json = False,
) -> None:
    """Set the policy that a tenant's commands must pass.

    It applies beside the policy of the session's environment, and the stricter one decides. All servers
    apply it within 5 seconds.
    """
    chosen = None if name == _NONE else name
    _show([with_administrator(ctx, lambda server: server.set_policy(tenant, chosen))], as_json)


def _show(tenants: list[TenantBody], as_json: bool) -> None:
    from sandlot.cli.terminal import display

    if as_json:
        display.print_json(tenants)
        return
    display.print_table(
        ("TENANT", "SESSIONS", "CORES", "MEMORY MIB", "COMMANDS", "CREATES/S", "CALLS/S", "POLICY"),
        [
            (
                tenant.tenant,
                _used(tenant.use.sessions, tenant.limits.sessions),
                _used(tenant.use.cpus, tenant.limits.cpus),
                _used(tenant.use.memory_mb, tenant.limits.memory_mb),
                _most(tenant.limits, "execs"),
                _most(tenant.limits, "creates_per_s"),
                _most(tenant.limits, "calls_per_s"),
                tenant.policy or "none",
            )
            for tenant in tenants
        ],
        unwrapped="TENANT",
    )


def _used(used: float, most: float | None) -> str:
    return f"{used:g}" if most is None else f"{used:g} of {most:g}"


def _most(limits: LimitsBody, name: str) -> str:
    value = getattr(limits, name)
    return "no limit" if value is None else f"{value:g}"
