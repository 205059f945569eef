"""``expose``, ``unexpose`` and ``previews``: links to what a sandbox serves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sandlot.cli.chosen import parse_time
from sandlot.cli.connection import with_client

if TYPE_CHECKING:
    from sandlot.client.async_client import AsyncClient
    from sandlot.domain.network.ports import Exposure, Preview

SessionId = Annotated[str, typer.Argument(metavar="SESSION", help="The session's id.")]
Port = Annotated[int, typer.Argument(metavar="PORT", help="The port inside the sandbox.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def register(app: typer.Typer) -> None:
    app.command()(expose)
    app.command()(unexpose)
    app.command()(previews)


def expose(
    ctx: typer.Context,
    session_id: SessionId,
    port: Port,
    public: Annotated[bool, typer.Option("--public", help="Let everybody see it, without a link.")] = False,
    expires: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="When the link ends: 90 (seconds), 30m or 2h. Default: 24h."),
    ] = None,
    keep_prefix: Annotated[
        bool, typer.Option("--keep-prefix", help="Give the program the whole path of each request.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Print a link to a port of a sandbox.

    Whoever has the link sees what listens there, until the link expires, `sandlot unexpose SESSION PORT`,
    or the session's end.
    """
    expires_s = None if expires is None else parse_time(expires)
    if expires is not None and not expires_s:
        raise typer.BadParameter("--expires must be more than 0. Use 90 (seconds), 30m or 2h.")

    async def work(client: AsyncClient) -> Preview:
        session = await client.get(session_id)
        return await session.expose(port, public=public, expires_s=expires_s, keep_prefix=keep_prefix)

    preview = with_client(ctx, work)
    if as_json:
        from sandlot.cli.terminal import display
        from sandlot.wire.network.preview_bodies import PreviewBody

        display.print_json(PreviewBody.of(preview))
    else:
        print(preview.url)


def unexpose(ctx: typer.Context, session_id: SessionId, port: Port) -> None:
    """End all links to a port of a sandbox."""
    with_client(ctx, lambda client: client.service.unexpose_port(session_id, port))


def previews(ctx: typer.Context, session_id: SessionId, as_json: Json = False) -> None:
    """List the ports of a sandbox that have links."""
    from sandlot.cli.terminal import display
    from sandlot.wire.network.preview_bodies import ExposedPortBody

    async def work(client: AsyncClient) -> list[Exposure]:
        return list(await client.service.list_exposed(session_id))

    exposures = with_client(ctx, work)
    if as_json:
        display.print_json([ExposedPortBody.of(exposure) for exposure in exposures])
        return
    display.print_table(
        ("PORT", "VISIBLE TO"),
        [(str(one.port), "everybody" if one.public else "holders of a link") for one in exposures],
    )
