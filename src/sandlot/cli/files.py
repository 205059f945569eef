"""``files ls|cat|put|get|rm``: the files of a session, named ``SESSION:path`` as scp does."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, cast

import typer

from sandlot.cli.connection import with_client
from sandlot.domain.errors import FileProblem

if TYPE_CHECKING:
    from rich.progress import Progress

    from sandlot.client.async_client import AsyncClient

app = typer.Typer(help="A session's files.", no_args_is_help=True, rich_markup_mode=None)

_PIECE_BYTES = 256 * 1024
# Of one file that is copied here: a model passes; a sandbox that sends without end does not fill the disk.
_MOST_BYTES = 16 * 1024**3


@dataclass(frozen=True, slots=True)
class Place:
    """A path in a session's sandbox: absolute, or relative to the workspace."""

    session_id: str
    path: str


def place(text: str, *, whole: bool = False) -> Place:
    """``whole``: a session alone means its workspace."""
    session_id, _, path = text.partition(":")
    if not session_id or not (path or whole):
        raise typer.BadParameter(f"{text!r} does not name a file of a session: write SESSION:path")
    return Place(session_id, path or ".")


Remote = Annotated[str, typer.Argument(metavar="SESSION:PATH")]


@app.command()
def ls(
    ctx: typer.Context,
    remote: Annotated[str, typer.Argument(metavar="SESSION[:PATH]")],
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """List a folder."""
    from sandlot.cli import display

    at = place(remote, whole=True)

    async def work(client: AsyncClient) -> None:
        entries = await (await client.get(at.session_id)).files.list(at.path)
        if as_json:
            display.print_json(entries)
            return
        rows = [
            (
                entry.type,
                f"{entry.mode & 0o7777:04o}",
                display.size(entry.size),
                display.moment(entry.mtime_ms / 1000),
                entry.name + (f" -> {entry.target}" if entry.target else ""),
            )
            for entry in entries
        ]
        display.print_table(("TYPE", "MODE", "SIZE", "CHANGED", "NAME"), rows)

    with_client(ctx, work)


@app.command()
def cat(ctx: typer.Context, remote: Remote) -> None:
    """Print a file as it is."""
    from sandlot.cli import display

    at = place(remote)

    async def work(client: AsyncClient) -> int:
        async with aclosing(_content(client, at)) as pieces:
            async for piece in pieces:
                try:
                    display.write_bytes(1, piece)
                except BrokenPipeError:
                    return display.BROKEN_PIPE
        return 0

    raise typer.Exit(with_client(ctx, work))


@app.command()
def put(
    ctx: typer.Context,
    local: Annotated[Path, typer.Argument(exists=True, readable=True)],
    remote: Annotated[str, typer.Argument(metavar="SESSION[:PATH]")],
) -> None:
    """Copy a file or a whole folder into a session. A path that ends in / is a folder to put it in."""
    from sandlot.cli import display

    at = place(remote, whole=True)
    path = (
        at.path
        if at.path != "." and not at.path.endswith("/")
        else str(PurePosixPath(at.path) / _name(local))
    )

    async def work(client: AsyncClient) -> None:
        session = await client.get(at.session_id)
        if local.is_dir():
            with display.transfer(f"{local} → {path}", None):
                await session.files.upload(local, path)
        else:
            total = local.stat().st_size
            with display.transfer(f"{local} → {path}", total) as progress:
                await session.files.write(path, _read(local, progress), mode=local.stat().st_mode & 0o777)
        print(f"{at.session_id}:{display.harmless(path)}")

    with_client(ctx, work)


@app.command()
def get(
    ctx: typer.Context,
    remote: Remote,
    local: Annotated[Path, typer.Argument(help="Where to; a folder that exists receives it.")] = Path("."),
) -> None:
    """Copy a file or a whole folder out of a session. A file that is there already is replaced."""
    from sandlot.cli import display
    from sandlot.domain.files import FileType

    at = place(remote)

    async def work(client: AsyncClient) -> None:
        session = await client.get(at.session_id)
        entry = await session.files.stat(at.path)
        target = local / _name(PurePosixPath(at.path)) if local.is_dir() else local
        if entry.type is FileType.DIRECTORY:
            with display.transfer(f"{at.path} → {target}", None):
                await session.files.download(at.path, target)
        else:
            with display.transfer(f"{at.path} → {target}", entry.size) as progress:
                await _download(client, at, target, progress)
        print(display.harmless(str(target)))

    with_client(ctx, work)


@app.command()
def rm(
    ctx: typer.Context,
    remote: Remote,
    recursive: Annotated[bool, typer.Option("-r", "--recursive", help="A folder with all in it.")] = False,
) -> None:
    """Remove a file or a folder."""
    at = place(remote)

    async def work(client: AsyncClient) -> None:
        await (await client.get(at.session_id)).files.remove(at.path, recursive=recursive)

    with_client(ctx, work)


def _name(path: Path | PurePosixPath) -> str:
    """The name that the person wrote; what a sandbox answers never names a file here."""
    name = path.resolve().name if isinstance(path, Path) else path.name
    if name in ("", ".", ".."):
        raise typer.BadParameter(f"{path} has no name of its own: say how the copy is called")
    return name


async def _read(local: Path, progress: Progress) -> AsyncIterator[bytes]:
    with local.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            yield piece
            progress.advance(progress.task_ids[0], len(piece))


def _content(client: AsyncClient, at: Place) -> AsyncGenerator[bytes, None]:
    """For ``aclosing``: a reader that stops early must not leave the request to the garbage collector."""
    return cast("AsyncGenerator[bytes, None]", client.service.files(at.session_id).read(at.path))


async def _download(client: AsyncClient, at: Place, target: Path, progress: Progress) -> None:
    """Beside the target and then over it: a broken download leaves what was there."""
    beside = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        async with aclosing(_content(client, at)) as pieces:
            with beside.open("xb") as file:
                async for piece in pieces:
                    if file.tell() + len(piece) > _MOST_BYTES:
                        raise _too_large(at)
                    file.write(piece)
                    progress.advance(progress.task_ids[0], len(piece))
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)


def _too_large(at: Place) -> FileProblem:
    return FileProblem(
        f"{at.path} exceeds {_MOST_BYTES} bytes, the most that is copied; `sandlot files cat` has no bound",
        reason="too_large",
        path=at.path,
    )
