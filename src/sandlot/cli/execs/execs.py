"""``ps``, ``logs`` and ``kill``: the commands of a session, by their ids."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sandlot.cli.connection import with_client

if TYPE_CHECKING:
    from sandlot.client.async_client import AsyncClient
    from sandlot.client.async_exec import AsyncExec
    from sandlot.domain.computer import ExecSummary

SessionId = Annotated[str, typer.Argument(metavar="SESSION", help="The session's id.")]
ExecId = Annotated[
    str, typer.Argument(metavar="COMMAND_ID", help="The command's id, as `sandlot ps` shows it.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def register(app: typer.Typer) -> None:
    app.command()(ps)
    app.command()(logs)
    app.command()(kill)


def ps(ctx: typer.Context, session_id: SessionId, as_json: Json = False) -> None:
    """List the running and recent commands of a session."""
    from sandlot.cli.terminal import display

    async def work(client: AsyncClient) -> list[ExecSummary]:
        return await (await client.get(session_id)).execs()

    execs = with_client(ctx, work)
    if as_json:
        display.print_json(execs)
        return
    display.print_table(
        ("COMMAND ID", "STATE", "STARTED", "TOOK", "OUTPUT", "COMMAND"),
        [
            (
                one.exec_id,
                "running" if one.running else f"exit {'?' if one.exit_code is None else one.exit_code}",
                "-" if one.started_at is None else display.timestamp(one.started_at),
                "-" if one.duration_ms is None else f"{one.duration_ms / 1000:.3g} s",
                "-" if one.output_end is None else display.size(one.output_end),
                one.command,
            )
            for one in execs
        ],
        unwrapped="COMMAND ID",
    )


def logs(
    ctx: typer.Context,
    session_id: SessionId,
    exec_id: ExecId,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the command ends. Ctrl-C leaves it running.")
    ] = False,
) -> None:
    """Print the output of a command: stdout and stderr."""
    from sandlot.cli.terminal import display

    async def work(client: AsyncClient) -> None:
        execution = await (await client.get(session_id)).exec(exec_id)
        await (_follow(execution) if follow else _print_so_far(execution))

    try:
        with_client(ctx, work)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except BrokenPipeError:
        raise typer.Exit(display.BROKEN_PIPE) from None


def kill(ctx: typer.Context, session_id: SessionId, exec_id: ExecId) -> None:
    """Kill a command with all its processes."""

    async def work(client: AsyncClient) -> int:
        return await (await (await client.get(session_id)).exec(exec_id)).kill()

    count = with_client(ctx, work)
    print(f"killed {count} process{'' if count == 1 else 'es'}")


async def _print_so_far(execution: AsyncExec) -> None:
    from sandlot.cli.terminal import display

    output = await execution.read()
    kept, lost = output.data, output.omitted
    if lost is None:
        display.write_bytes(1, kept)
        return
    display.write_bytes(1, kept[: lost.at])
    _note_lost(lost.bytes)
    display.write_bytes(1, kept[lost.at :])


async def _follow(execution: AsyncExec) -> None:
    from sandlot.cli.terminal import display
    from sandlot.domain.execution import Channel, Output

    expected = 0
    async for event in execution.events():
        if isinstance(event, Output):
            if event.offset > expected:
                _note_lost(event.offset - expected)
            expected = event.offset + len(event.data)
            display.write_bytes(2 if event.channel is Channel.STDERR else 1, event.data)


def _note_lost(count: int) -> None:
    from sandlot.cli.terminal.display import note

    note(f"{count} bytes of output were lost here.")
