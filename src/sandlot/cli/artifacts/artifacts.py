"""``artifacts keep|list|download|delete``: files that stay after their sessions."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sandlot.cli.connection import with_client

if TYPE_CHECKING:
    from sandlot.client.async_client import AsyncClient
    from sandlot.domain.artifacts.artifact import Artifact, KeptArtifacts

app = typer.Typer(
    help="Keep files of sessions, and download them later.", no_args_is_help=True, rich_markup_mode=None
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def keep(
    ctx: typer.Context,
    session_id: Annotated[str, typer.Argument(metavar="SESSION", help="The session's id.")],
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH...",
            help="Files, folders or patterns such as 'out/*.png', relative to /workspace. Quote patterns.",
        ),
    ],
    as_json: Json = False,
) -> None:
    """Keep files of a session as they are now.

    They stay after its end. Prints the id and the path of each. If a path matches nothing, or a file cannot
    be kept, the command says so and exits with 1.
    """
    from sandlot.cli.terminal import display
    from sandlot.domain.text.printable import escape_unprintable

    async def work(client: AsyncClient) -> KeptArtifacts:
        return await (await client.get(session_id)).artifacts.keep(*paths)

    done = with_client(ctx, work)
    if as_json:
        display.print_json(done)
    else:
        for artifact in done.kept:
            print(f"{artifact.id}\t{escape_unprintable(artifact.path)}")
        for path in done.unmatched:
            display.note(f"No file matches {escape_unprintable(path)}.")
        for refused in done.refused:
            display.note(f"{escape_unprintable(refused.path)} was not kept: {refused.message}")
    if done.unmatched or done.refused:
        raise typer.Exit(1)


@app.command("list")
def list_artifacts(
    ctx: typer.Context,
    session_id: Annotated[
        str | None,
        typer.Argument(
            metavar="[SESSION]", help="List only the artifacts of this session. It may have ended."
        ),
    ] = None,
    thread: Annotated[
        str | None, typer.Option("--thread", metavar="THREAD", help="List only those of this thread.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List artifacts, oldest first."""
    from sandlot.cli.terminal import display
    from sandlot.domain.text.printable import escape_unprintable

    async def work(client: AsyncClient) -> list[Artifact]:
        return [artifact async for artifact in client.artifacts.list(session_id, thread=thread)]

    artifacts = with_client(ctx, work)
    if as_json:
        display.print_json(artifacts)
        return
    display.print_table(
        ("ARTIFACT", "SESSION", "CREATED", "SIZE", "PATH"),
        [
            (
                artifact.id,
                artifact.session_id,
                display.timestamp(artifact.created_at),
                display.size(artifact.size),
                escape_unprintable(artifact.path),
            )
            for artifact in artifacts
        ],
        unwrapped="ARTIFACT",
    )


@app.command()
def download(
    ctx: typer.Context,
    artifact_id: Annotated[str, typer.Argument(metavar="ARTIFACT", help="The artifact's id.")],
    local: Annotated[
        Path | None,
        typer.Argument(
            metavar="[LOCAL]",
            help="The file or folder to write to; the current folder by default. `-` is stdout.",
        ),
    ] = None,
) -> None:
    """Download an artifact, and print the copy's path."""
    from sandlot.cli.terminal import display

    async def copy(client: AsyncClient) -> Path:
        return await client.artifacts.download(artifact_id, local or Path())

    async def show(client: AsyncClient) -> None:
        async for piece in client.artifacts.stream(artifact_id):
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()

    try:
        if local is not None and str(local) == "-":
            with_client(ctx, show)
        else:
            print(with_client(ctx, copy))
    except BrokenPipeError:
        raise typer.Exit(display.BROKEN_PIPE) from None


@app.command()
def delete(
    ctx: typer.Context,
    artifact_ids: Annotated[list[str], typer.Argument(metavar="ARTIFACT...", help="The artifacts' ids.")],
) -> None:
    """Delete artifacts."""

    async def work(client: AsyncClient) -> None:
        for artifact_id in artifact_ids:
            await client.artifacts.delete(artifact_id)
            print(artifact_id)

    with_client(ctx, work)
