"""``sessions list|show|delete|extend|recreate``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sandlot.cli.chosen import session_of
from sandlot.cli.connection import with_client

if TYPE_CHECKING:
    from sandlot.client.async_client import AsyncClient
    from sandlot.client.async_session import AsyncSession
    from sandlot.domain.session import Session

app = typer.Typer(help="What clients hold.", no_args_is_help=True, rich_markup_mode=None)

SessionId = Annotated[str, typer.Argument(metavar="SESSION")]
Json = Annotated[bool, typer.Option("--json", help="As JSON.")]


@app.command("list")
def list_sessions(
    ctx: typer.Context,
    thread: Annotated[str | None, typer.Option(help="Of this conversation alone.")] = None,
    as_json: Json = False,
) -> None:
    """List the sessions that live or have lost their sandbox, oldest first."""
    from sandlot.cli import display
    from sandlot.wire.http_bodies import SessionBody

    async def work(client: AsyncClient) -> list[Session]:
        return [session.info async for session in client.sessions(thread=thread)]

    sessions = with_client(ctx, work)
    if as_json:
        display.print_json([SessionBody.of(session) for session in sessions])
        return
    display.print_table(
        ("SESSION", "THREAD", "ENVIRONMENT", "STATE", "CREATED", "ENDS IN"),
        [
            (
                session.id,
                session.thread or "-",
                session.environment,
                session.state,
                display.moment(session.created_at),
                display.left_until(session.expires_at),
            )
            for session in sessions
        ],
        whole="SESSION",
    )


@app.command()
def show(ctx: typer.Context, session_id: SessionId, as_json: Json = False) -> None:
    """Show one session."""
    _show(with_client(ctx, lambda client: client.get(session_id)), as_json)


@app.command()
def delete(
    ctx: typer.Context,
    session_ids: Annotated[list[str] | None, typer.Argument(metavar="[SESSION...]")] = None,
    threads: Annotated[
        list[str] | None, typer.Option("--thread", help="The session of this conversation; may be repeated.")
    ] = None,
) -> None:
    """Delete sessions with their sandboxes and files."""
    if not session_ids and not threads:
        raise typer.BadParameter("say which: SESSION, or --thread for the session of a conversation")

    async def work(client: AsyncClient) -> None:
        of_threads = [(await session_of(client, None, thread)).id for thread in threads or ()]
        for session_id in (*(session_ids or ()), *of_threads):
            await client.service.delete_session(session_id)
            print(session_id)

    with_client(ctx, work)


@app.command()
def extend(
    ctx: typer.Context,
    session_id: SessionId,
    time: Annotated[str, typer.Argument(help="How long from now: 90, 30m, 2h.")],
    as_json: Json = False,
) -> None:
    """Let a session live until a time from now."""
    from sandlot.config.recipes import seconds_of_duration

    seconds = seconds_of_duration(float(time) if time.replace(".", "", 1).isdecimal() else time)
    if not seconds:
        raise typer.BadParameter("give a time such as 90, 30m or 2h")

    async def work(client: AsyncClient) -> AsyncSession:
        session = await client.get(session_id)
        await session.extend(seconds)
        return session

    _show(with_client(ctx, work), as_json)


@app.command()
def recreate(ctx: typer.Context, session_id: SessionId, as_json: Json = False) -> None:
    """Give a session that lost its sandbox a new one."""

    async def work(client: AsyncClient) -> AsyncSession:
        session = await client.get(session_id)
        await session.recreate()
        return session

    _show(with_client(ctx, work), as_json)


def _show(session: AsyncSession, as_json: bool) -> None:
    from sandlot.cli import display
    from sandlot.wire.http_bodies import SessionBody

    info = session.info
    if as_json:
        display.print_json(SessionBody.of(info))
        return
    limits = info.limits
    fields = [
        ("session", info.id),
        ("thread", info.thread or "-"),
        ("environment", info.environment),
        ("state", info.state),
        ("generation", str(info.generation)),
        ("created", display.moment(info.created_at)),
        ("last active", display.moment(info.last_active_at)),
        ("ends", f"{display.moment(info.expires_at)} (in {display.left_until(info.expires_at)})"),
        ("idle timeout", display.duration(info.idle_timeout_s)),
        ("lifetime", display.duration(info.lifetime_s)),
        ("memory", display.size(limits.memory_bytes)),
        ("cpus", f"{limits.cpus:g}"),
        ("processes", str(limits.pids)),
        *((f"metadata {name}", value) for name, value in sorted(info.metadata.items())),
    ]
    if info.loss is not None:
        fields += [
            (
                "lost",
                f"generation {info.loss.generation} at {display.moment(info.loss.at)}: {info.loss.reason}",
            ),
            ("lost with it", ", ".join(info.loss.lost) or "-"),
            ("kept", ", ".join(info.loss.kept) or "-"),
        ]
    display.print_fields(fields)
