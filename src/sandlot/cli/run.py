"""``run``, ``exec`` and ``shell``: commands in sandboxes, as if they ran here."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sandlot.cli.chosen import OfThread, session_of, variables
from sandlot.cli.connection import with_client

if TYPE_CHECKING:
    from sandlot.client.async_client import AsyncClient
    from sandlot.client.async_session import AsyncSession
    from sandlot.client.options import ExecOptions

# Options end at the first word of the command: `sandlot run ls -l` needs no `--`.
_COMMAND = {"allow_interspersed_args": False}

Command = Annotated[
    list[str],
    typer.Argument(
        help="One word is a command for bash; several are a program and its arguments.", show_default=False
    ),
]
Environment = Annotated[str | None, typer.Option(help="The environment of a new session, such as gvisor.")]
Variables = Annotated[
    list[str] | None,
    typer.Option("-e", "--env", metavar="NAME=VALUE", help="A variable for the command; may be repeated."),
]
Thread = Annotated[str | None, typer.Option(help="Use this conversation's session; it is kept.")]
Timeout = Annotated[float | None, typer.Option(min=0.001, help="Seconds after which the command is ended.")]
Keep = Annotated[bool, typer.Option("--keep", help="Leave the new session in place.")]
Local = Annotated[bool, typer.Option("--local", help="Without a server: a worker in this process.")]
Merge = Annotated[
    bool,
    typer.Option("--merge-output", help="One stream for stdout and stderr, so that their order is exact."),
]
Input = Annotated[bool, typer.Option("-i", "--stdin", help="Pass our input on, and its end.")]


def register(app: typer.Typer) -> None:
    app.command(context_settings=_COMMAND)(run)
    app.command("exec", context_settings=_COMMAND)(exec_)
    app.command()(shell)


def run(
    ctx: typer.Context,
    command: Command,
    environment: Environment = None,
    env: Variables = None,
    thread: Thread = None,
    stdin: Input = False,
    timeout: Timeout = None,
    merge_output: Merge = False,
    keep: Keep = False,
    local: Local = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole result at the end.")] = False,
) -> None:
    """Run a command in a new sandbox and remove it afterwards; its exit code is ours."""
    from sandlot.cli import attach

    words = attach.one_or_words(command)
    options: ExecOptions = {"timeout_s": timeout, "env": variables(env), "merge_output": merge_output}

    async def work(client: AsyncClient) -> int:
        async with await _open(client, environment=environment, thread=thread, keep=keep) as session:
            if as_json:
                return await _print_result(session, words, stdin=stdin, options=options)
            return await attach.on_pipes(session, words, stdin=stdin, options=options)

    raise typer.Exit(with_client(ctx, work, local=local))


def exec_(
    ctx: typer.Context,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[SESSION] COMMAND...",
            help="SESSION, unless --thread names it; then the command, as for `run`.",
            show_default=False,
        ),
    ],
    thread: OfThread = None,
    env: Variables = None,
    stdin: Input = False,
    terminal: Annotated[bool, typer.Option("-t", "--tty", help="On a terminal, with our input.")] = False,
    timeout: Timeout = None,
    merge_output: Merge = False,
) -> None:
    """Run a command in a session; its exit code is ours."""
    from sandlot.cli import attach

    session_id = None if thread is not None else words[0]
    command = attach.one_or_words(words if session_id is None else words[1:])
    options: ExecOptions = {"timeout_s": timeout, "env": variables(env), "merge_output": merge_output}

    async def work(client: AsyncClient) -> int:
        session = await session_of(client, session_id, thread)
        if terminal:
            return await attach.on_terminal(session, command, options=options)
        return await attach.on_pipes(session, command, stdin=stdin, options=options)

    raise typer.Exit(with_client(ctx, work))


def shell(
    ctx: typer.Context,
    session_id: Annotated[str | None, typer.Option("--session", help="Use this session.")] = None,
    environment: Environment = None,
    env: Variables = None,
    thread: Thread = None,
    timeout: Timeout = None,
    keep: Keep = False,
    local: Local = False,
) -> None:
    """Open a terminal in a sandbox: a new one that is removed afterwards, a thread's, or a session's."""
    from sandlot.cli import attach

    if session_id is not None and (environment is not None or thread is not None):
        raise typer.BadParameter(
            "--session names a session that exists: leave out --environment and --thread"
        )
    options: ExecOptions = {"timeout_s": timeout, "env": variables(env)}

    async def work(client: AsyncClient) -> int:
        if session_id is not None:
            opened: AbstractAsyncContextManager[AsyncSession] = nullcontext(await client.get(session_id))
        else:
            opened = await _open(client, environment=environment, thread=thread, keep=keep)
        async with opened as session:
            return await attach.on_terminal(session, ("bash", "-l"), options=options)

    raise typer.Exit(with_client(ctx, work, local=local))


async def _open(
    client: AsyncClient, *, environment: str | None, thread: str | None, keep: bool
) -> AbstractAsyncContextManager[AsyncSession]:
    """A session that is deleted at the end, unless somebody may come back to it."""
    from sandlot.cli.display import note, said_if_slow

    with said_if_slow(
        "making a sandbox; the first of an image prepares that image, which takes some seconds"
    ):
        if thread is not None:
            return nullcontext(await client.thread(thread, environment))
        session = await client.create(environment)
    if not keep:
        return session
    note(f"session {session.id} is kept")
    return nullcontext(session)


async def _print_result(session: AsyncSession, words: Any, *, stdin: bool, options: ExecOptions) -> int:
    import sys

    from sandlot.cli.display import print_json
    from sandlot.wire.exec_bodies import ResultBody

    data = sys.stdin.buffer.read() if stdin else None
    result = await session.run(words, stdin=data, **options)
    print_json(ResultBody.of(result.raw))
    return result.exit_code if result.exit_code or result.ok else 1
