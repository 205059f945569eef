"""``contexts list|create|interrupt|restart|delete``: the kernels of a session that keep variables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sandlot.cli.connection import with_client

if TYPE_CHECKING:
    from sandlot.client.async_client import AsyncClient
    from sandlot.client.code.async_code import AsyncCodeContext
    from sandlot.domain.code.contexts import Context

app = typer.Typer(
    help="List and control the contexts of code.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

SessionId = Annotated[str, typer.Argument(metavar="SESSION", help="The session's id.")]
ContextId = Annotated[str, typer.Argument(metavar="CONTEXT", help="The context's id, such as python.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("list")
def list_contexts(ctx: typer.Context, session_id: SessionId, as_json: Json = False) -> None:
    """List the contexts of a session."""
    from sandlot.cli.terminal import display

    async def work(client: AsyncClient) -> list[Context]:
        found = await (await client.get(session_id)).code.contexts()
        return [context.info for context in found if context.info is not None]

    contexts = with_client(ctx, work)
    if as_json:
        display.print_json(contexts)
        return
    display.print_table(
        ("CONTEXT", "LANGUAGE", "STATE", "RUNS", "RESTARTS", "FOLDER"),
        [
            (
                context.id,
                context.language,
                "busy" if context.busy else "idle",
                str(context.executions),
                str(context.restarts),
                context.cwd,
            )
            for context in contexts
        ],
        unwrapped="CONTEXT",
    )


@app.command()
def create(
    ctx: typer.Context,
    session_id: SessionId,
    language: Annotated[
        str,
        typer.Option("--language", metavar="NAME", help="python, javascript, typescript, bash or r."),
    ] = "python",
    id: Annotated[
        str | None,
        typer.Option("--id", metavar="ID", help="Your name for it: lowercase letters, digits, - and _"),
    ] = None,
    cwd: Annotated[
        str | None,
        typer.Option("--cwd", metavar="DIR", help="The folder that it starts in.", show_default="/workspace"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Create a context, and print its id."""
    from sandlot.cli.terminal import display

    async def work(client: AsyncClient) -> AsyncCodeContext:
        session = await client.get(session_id)
        return await session.code.create(language, id=id, cwd=cwd)  # type: ignore[arg-type]

    created = with_client(ctx, work)
    if as_json:
        display.print_json(created.info)
    else:
        print(created.id)


@app.command()
def interrupt(ctx: typer.Context, session_id: SessionId, context_id: ContextId) -> None:
    """Interrupt what a context runs. Its variables stay."""

    async def work(client: AsyncClient) -> None:
        await (await client.get(session_id)).code.get(context_id).interrupt()

    with_client(ctx, work)


@app.command()
def restart(ctx: typer.Context, session_id: SessionId, context_id: ContextId) -> None:
    """Start a context's kernel again. Its variables go."""

    async def work(client: AsyncClient) -> None:
        await (await client.get(session_id)).code.get(context_id).restart()

    with_client(ctx, work)


@app.command()
def delete(ctx: typer.Context, session_id: SessionId, context_id: ContextId) -> None:
    """End a context."""

    async def work(client: AsyncClient) -> None:
        await (await client.get(session_id)).code.get(context_id).delete()
        print(context_id)

    with_client(ctx, work)
