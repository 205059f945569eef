"""``sessions list|create|show|delete|extend|recreate|fork|promote|hibernate``: lists and manages sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sandlot.cli.chosen import find_session, parse_time, parse_variables
from sandlot.cli.connection import with_client
from sandlot.cli.network import policy_of
from sandlot.cli.run import Environment, Network, Provider, Record
from sandlot.cli.volumes.volumes import VolumesOption, parse_volumes

if TYPE_CHECKING:
    from sandlot.client.async_client import AsyncClient
    from sandlot.client.async_session import AsyncSession
    from sandlot.client.options import SessionOptions
    from sandlot.domain.session import Session
    from sandlot.domain.workspaces.snapshots import Restored

app = typer.Typer(help="List and manage sessions.", no_args_is_help=True, rich_markup_mode=None)

SessionId = Annotated[str, typer.Argument(metavar="SESSION", help="The session's id.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("list")
def list_sessions(
    ctx: typer.Context,
    thread: Annotated[
        str | None, typer.Option("--thread", metavar="THREAD", help="List only this thread's session.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List active and lost sessions, oldest first."""
    from sandlot.cli.terminal import display
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
                display.timestamp(session.created_at),
                display.time_left(session.expires_at),
            )
            for session in sessions
        ],
        unwrapped="SESSION",
    )


@app.command()
def create(
    ctx: typer.Context,
    environment: Environment = None,
    provider: Provider = None,
    thread: Annotated[
        str | None,
        typer.Option(
            "--thread",
            metavar="THREAD",
            help="Your own id for a conversation. If it has a session, that session is returned.",
        ),
    ] = None,
    snapshot: Annotated[
        str | None,
        typer.Option("--snapshot", metavar="SNAPSHOT", help="Start with the files of this snapshot."),
    ] = None,
    record: Record = False,
    network: Network = None,
    volume: VolumesOption = None,
    as_json: Json = False,
) -> None:
    """Create a session, and print its id.

    It ends when you delete it, or when a timeout of its environment ends it. To open a terminal in it:
    `sandlot shell --session SESSION`
    """
    from sandlot.domain.environment import provider_named

    options: SessionOptions = {
        "record": record,
        "network": policy_of(network),
        "volumes": parse_volumes(volume),
        "provider": None if provider is None else provider_named(provider),
        "snapshot": snapshot,
    }

    async def work(client: AsyncClient) -> AsyncSession:
        return await client.create(environment, thread=thread, **options)

    session = with_client(ctx, work)
    if as_json:
        _show(session, as_json)
    else:
        print(session.id)


@app.command()
def show(ctx: typer.Context, session_id: SessionId, as_json: Json = False) -> None:
    """Show one session."""
    _show(with_client(ctx, lambda client: client.get(session_id)), as_json)


@app.command()
def delete(
    ctx: typer.Context,
    session_ids: Annotated[
        list[str] | None, typer.Argument(metavar="[SESSION...]", help="The sessions' ids.")
    ] = None,
    threads: Annotated[
        list[str] | None,
        typer.Option(
            "--thread", metavar="THREAD", help="Delete the session of this thread. Can be repeated."
        ),
    ] = None,
) -> None:
    """Delete sessions with their sandboxes and files."""
    if not session_ids and not threads:
        raise typer.BadParameter("Pass a SESSION or --thread.")

    async def work(client: AsyncClient) -> None:
        of_threads = [(await find_session(client, None, thread)).id for thread in threads or ()]
        for session_id in (*(session_ids or ()), *of_threads):
            await client.service.delete_session(session_id)
            print(session_id)

    with_client(ctx, work)


@app.command()
def extend(
    ctx: typer.Context,
    session_id: SessionId,
    time: Annotated[
        str, typer.Argument(metavar="TIME", help="Time from now until it ends: 90 (seconds), 30m or 2h.")
    ],
    as_json: Json = False,
) -> None:
    """Set how long a session lives from now.

    A time shorter than what is left ends it earlier.
    """
    seconds = parse_time(time)
    if not seconds:
        raise typer.BadParameter(
            "The time must be more than 0, and cannot be never. Use 90 (seconds), 30m or 2h."
        )

    async def work(client: AsyncClient) -> AsyncSession:
        session = await client.get(session_id)
        await session.extend(seconds)
        return session

    _show(with_client(ctx, work), as_json)


@app.command()
def recreate(ctx: typer.Context, session_id: SessionId, as_json: Json = False) -> None:
    """Replace a session's lost or unresponsive sandbox.

    The files in /workspace stay, unless the server has lost them. `sandlot sessions show` says so.
    """

    async def work(client: AsyncClient) -> AsyncSession:
        session = await client.get(session_id)
        await session.recreate()
        return session

    _show(with_client(ctx, work), as_json)


@app.command()
def fork(
    ctx: typer.Context,
    session_id: SessionId,
    count: Annotated[int, typer.Option("--count", "-n", metavar="N", min=1, help="How many.")] = 1,
    threads: Annotated[
        list[str] | None,
        typer.Option(
            "--thread",
            metavar="THREAD",
            help="Make one for this thread (your id for a conversation). Can be repeated.",
        ),
    ] = None,
    variables: Annotated[
        list[str] | None,
        typer.Option(
            "--env",
            metavar="NAME=VALUE",
            help="A variable for the new sessions. Those of the parent are not copied. Can be repeated.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make new sessions with a session's files.

    Each has a copy of the files as they are now, and prints its id. Either all are made or none.
    """
    from sandlot.client.workspaces.forks import ForkOptions

    options = ForkOptions(env=parse_variables(variables))
    if threads:
        options["threads"] = threads

    async def work(client: AsyncClient) -> list[Session]:
        parent = await client.get(session_id)
        return [each.info for each in await parent.fork(count, **options)]

    forks = with_client(ctx, work)
    if as_json:
        from sandlot.cli.terminal import display
        from sandlot.wire.http_bodies import SessionBody

        display.print_json([SessionBody.of(each) for each in forks])
        return
    for each in forks:
        print(each.id)


@app.command()
def promote(
    ctx: typer.Context,
    session_id: SessionId,
    fork_id: Annotated[str, typer.Argument(metavar="FORK", help="The id of the session with the files.")],
    as_json: Json = False,
) -> None:
    """Give a session the files of one of its forks.

    Every process of the session ends, and it gets a new sandbox. The fork stays as it is.
    """
    from sandlot.cli.workspaces.snapshots import print_restored

    async def work(client: AsyncClient) -> Restored:
        return await (await client.get(session_id)).promote(fork_id)

    print_restored(with_client(ctx, work), as_json)


@app.command()
def hibernate(ctx: typer.Context, session_id: SessionId, as_json: Json = False) -> None:
    """Give up a session's sandbox, but keep its files.

    Its processes end. Its next use gives it a new sandbox with its files.
    """

    async def work(client: AsyncClient) -> AsyncSession:
        return await (await client.get(session_id)).hibernate()

    _show(with_client(ctx, work), as_json)


def _show(session: AsyncSession, as_json: bool) -> None:
    from sandlot.cli.terminal import display
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
        ("created", display.timestamp(info.created_at)),
        ("last active", display.timestamp(info.last_active_at)),
        ("ends", _ends(info)),
        ("idle timeout", display.duration(info.idle_timeout_s)),
        ("lifetime", display.duration(info.lifetime_s)),
        ("memory", display.size(limits.memory_bytes)),
        ("cpus", f"{limits.cpus:g}"),
        ("processes", str(limits.pids)),
        ("recorded", "yes" if info.record else "no"),
        ("network", _network(info)),
        ("volumes", _volumes(info)),
        *((f"metadata {name}", value) for name, value in sorted(info.metadata.items())),
    ]
    if info.loss is not None:
        fields += [
            (
                "lost",
                f"generation {info.loss.generation} at {display.timestamp(info.loss.at)}: {info.loss.reason}",
            ),
            ("lost with it", ", ".join(info.loss.lost) or "-"),
            ("kept", ", ".join(info.loss.kept) or "-"),
        ]
    display.print_fields(fields)


def _network(session: Session) -> str:
    if session.network is None:
        return "as its environment says"
    return ", ".join(session.network.allow) or "none"


def _volumes(session: Session) -> str:
    return ", ".join(f"{volume.name} ({volume.mode.value})" for volume in session.volumes) or "none"


def _ends(session: Session) -> str:
    from sandlot.cli.terminal import display

    if session.expires_at is None:
        return "never"
    return f"{display.timestamp(session.expires_at)} (in {display.time_left(session.expires_at)})"
