"""``run``, ``exec`` and ``shell``: run commands in sandboxes as if they ran on this machine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sandlot.cli.chosen import ThreadOption, find_session, parse_variables
from sandlot.cli.connection import with_client
from sandlot.cli.network import policy_of
from sandlot.cli.volumes.volumes import VolumesOption, parse_volumes
from sandlot.domain.errors import InvalidRequest

if TYPE_CHECKING:
    from sandlot.client.async_client import AsyncClient
    from sandlot.client.async_session import AsyncSession
    from sandlot.client.options import ExecOptions, SessionOptions
    from sandlot.domain.volumes.volume import VolumeMode

# Options end at the first word of the command, so `sandlot run ls -l` needs no `--`.
_COMMAND = {"allow_interspersed_args": False}
MIN_TIMEOUT_S = 0.001


def _check_timeout(seconds: float | None) -> float | None:
    # Not with ``min=``: the help would show it as [x>=0.001].
    if seconds is not None and not seconds >= MIN_TIMEOUT_S:
        raise typer.BadParameter(f"Use at least {MIN_TIMEOUT_S} seconds.")
    return seconds


Command = Annotated[
    list[str],
    typer.Argument(
        metavar="COMMAND...",
        help="A single argument is a bash command line. Several arguments are a program and its arguments.",
        show_default=False,
    ),
]
Environment = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Environment for the new session, such as gvisor. `sandlot env list` shows those of your "
        "server.",
    ),
]
Provider = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Where the new session's sandbox runs: docker or e2b. The environment must use that provider.",
    ),
]
Variables = Annotated[
    list[str] | None,
    typer.Option(
        "-e", "--env", metavar="NAME=VALUE", help="Set a variable for the command. Can be repeated."
    ),
]
Thread = Annotated[
    str | None,
    typer.Option(
        "--thread",
        metavar="THREAD",
        help="Use the session of this thread, which is your own id for a conversation. It is created if "
        "missing, and kept.",
    ),
]
Timeout = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        callback=_check_timeout,
        help=f"Kill the command or shell after this many seconds, at least {MIN_TIMEOUT_S}. Without it, the "
        "server's limit applies: by default 1 hour, or 5 minutes with --json.",
    ),
]
Keep = Annotated[bool, typer.Option("--keep", help="Keep the session after the command or shell ends.")]
Local = Annotated[
    bool, typer.Option("--local", help="Run without a server, in this process, even if one is running.")
]
Quiet = Annotated[
    bool, typer.Option("-q", "--quiet", help="Do not print which server is used or what is taking time.")
]
Merge = Annotated[
    bool,
    typer.Option("--merge-output", help="Merge stderr into stdout, like 2>&1, to keep the exact order."),
]
Record = Annotated[
    bool,
    typer.Option("--record", help="Record what is written. `sandlot recording` downloads the recording."),
]
Network = Annotated[
    list[str] | None,
    typer.Option(
        "--network",
        "--allow",
        metavar="HOST",
        help="Let the new session connect to this host or preset, such as example.com, pypi or public. Can "
        "be repeated.",
    ),
]
Input = Annotated[bool, typer.Option("-i", "--stdin", help="Forward stdin to the command.")]


def register(app: typer.Typer) -> None:
    app.command(context_settings=_COMMAND)(run)
    app.command("exec", context_settings=_COMMAND)(exec_)
    app.command()(shell)


def run(
    ctx: typer.Context,
    command: Command,
    environment: Environment = None,
    provider: Provider = None,
    env: Variables = None,
    thread: Thread = None,
    stdin: Input = False,
    timeout: Timeout = None,
    merge_output: Merge = False,
    record: Record = False,
    network: Network = None,
    volume: VolumesOption = None,
    keep: Keep = False,
    local: Local = False,
    quiet: Quiet = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print the result as JSON when the command ends. Implies --quiet."),
    ] = False,
) -> None:
    """Run a command in a temporary sandbox.

    Uses the server that you name (`sandlot --url URL run …`), or the one that you run on this machine.
    If there is none, it runs the command locally with Docker. A line on stderr says which it uses.

    Exits with the status of the command. Everything from the first word of the command on belongs to
    the command: `sandlot run ls -l` needs no `--`.
    """
    from sandlot.cli.terminal import attach

    words, volumes = attach.parse_command(command), parse_volumes(volume)
    options: ExecOptions = {"timeout_s": timeout, "env": parse_variables(env), "merge_output": merge_output}

    quiet = quiet or as_json

    async def work(client: AsyncClient) -> int:
        opening = _open(
            client, environment, provider, thread, network, volumes, record=record, keep=keep, quiet=quiet
        )
        async with opening as session:
            if as_json:
                return await _print_result(session, words, stdin=stdin, options=options)
            return await attach.on_pipes(session, words, stdin=stdin, options=options)

    raise typer.Exit(with_client(ctx, work, local=local, or_local=True, quiet=quiet))


def exec_(
    ctx: typer.Context,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[SESSION] COMMAND...",
            help="Session id (omit it with --thread), then the command, as for `run`.",
            show_default=False,
        ),
    ],
    thread: ThreadOption = None,
    env: Variables = None,
    stdin: Input = False,
    terminal: Annotated[
        bool, typer.Option("-t", "--tty", help="Attach a terminal and forward stdin.")
    ] = False,
    timeout: Timeout = None,
    merge_output: Merge = False,
) -> None:
    """Run a command in an existing session.

    Exits with the status of the command.
    """
    from sandlot.cli.terminal import attach

    session_id = None if thread is not None else words[0]
    if session_id is not None and len(words) == 1:
        raise InvalidRequest(
            "Missing command. The first word is the session: sandlot exec SESSION COMMAND, or sandlot exec "
            "--thread THREAD COMMAND"
        )
    command = attach.parse_command(words if session_id is None else words[1:])
    options: ExecOptions = {"timeout_s": timeout, "env": parse_variables(env), "merge_output": merge_output}

    async def work(client: AsyncClient) -> int:
        session = await find_session(client, session_id, thread)
        if terminal:
            return await attach.on_terminal(session, command, options=options)
        return await attach.on_pipes(session, command, stdin=stdin, options=options)

    raise typer.Exit(with_client(ctx, work))


def shell(
    ctx: typer.Context,
    session_id: Annotated[
        str | None, typer.Option("--session", metavar="SESSION", help="Use this existing session.")
    ] = None,
    environment: Environment = None,
    provider: Provider = None,
    env: Variables = None,
    thread: Thread = None,
    timeout: Timeout = None,
    record: Record = False,
    network: Network = None,
    volume: VolumesOption = None,
    keep: Keep = False,
    local: Local = False,
    quiet: Quiet = False,
) -> None:
    """Open a terminal in a sandbox.

    Finds a server, or runs locally, like `run`. Exits with the status of the shell. The sandbox is
    temporary unless you pass --thread, --session or --keep.
    """
    from sandlot.cli.terminal import attach

    volumes = parse_volumes(volume)
    asked = (
        environment is not None or provider is not None or thread is not None or record or network or volumes
    )
    if session_id is not None and asked:
        raise typer.BadParameter(
            "--session cannot be combined with --environment, --provider, --thread, --record, --network "
            "or --volume."
        )
    options: ExecOptions = {"timeout_s": timeout, "env": parse_variables(env)}

    async def work(client: AsyncClient) -> int:
        if session_id is not None:
            return await bash(await client.get(session_id))
        opening = _open(
            client, environment, provider, thread, network, volumes, record=record, keep=keep, quiet=quiet
        )
        async with opening as session:
            return await bash(session)

    async def bash(session: AsyncSession) -> int:
        return await attach.on_terminal(session, ("bash", "-l"), options=options)

    # A local worker of this command's own has no session with an id from elsewhere.
    or_local = session_id is None
    raise typer.Exit(with_client(ctx, work, local=local, or_local=or_local, quiet=quiet))


@asynccontextmanager
async def _open(
    client: AsyncClient,
    environment: str | None,
    provider: str | None,
    thread: str | None,
    network: list[str] | None,
    volumes: Mapping[str, VolumeMode],
    *,
    record: bool,
    keep: bool,
    quiet: bool,
) -> AsyncIterator[AsyncSession]:
    """Open a session. Leaving it deletes it, unless it is kept or belongs to a thread."""
    from sandlot.cli.terminal.display import note, note_if_slow
    from sandlot.domain.environment import provider_named

    with note_if_slow(
        "Creating a sandbox. The first one from an image takes a few seconds longer.", quiet=quiet
    ):
        asked: SessionOptions = {
            "record": record,
            "network": policy_of(network),
            "volumes": volumes,
            "provider": None if provider is None else provider_named(provider),
        }
        if thread is None:
            session = await client.create(environment, **asked)
        else:
            session = await client.thread(thread, environment, **asked)
    # Only a server's sessions can be deleted by another command.
    on_server = hasattr(client.service, "url")
    if keep and thread is None:
        advice = (
            f"To delete it: sandlot sessions delete {session.id}"
            if on_server
            else f"To open it again: sandlot shell --local --session {session.id}"
        )
        note(f"Kept session {session.id}. {advice}")
    if record and not quiet:
        local = "" if on_server else "--local "
        note(f"Recording session {session.id}. To download it: sandlot recording {local}{session.id}")
    try:
        yield session
    finally:
        if not keep and thread is None:
            with note_if_slow("Deleting the sandbox.", quiet=quiet):
                await session.delete()


async def _print_result(session: AsyncSession, words: Any, *, stdin: bool, options: ExecOptions) -> int:
    import sys

    from sandlot.cli.terminal.display import print_json
    from sandlot.wire.exec_bodies import ResultBody

    data = sys.stdin.buffer.read() if stdin else None
    result = await session.run(words, stdin=data, **options)
    print_json(ResultBody.of(result.raw))
    return result.exit_code if result.exit_code or result.ok else 1
