"""``files ls|cat|put|get|rm``: the files of a session, named ``SESSION:path`` as scp does.

With ``--thread`` the session is the conversation's, and what would be ``SESSION:path`` is the path alone.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, cast

import typer

from sandlot.cli.chosen import OfThread, session_of
from sandlot.cli.connection import with_client
from sandlot.domain.errors import FileProblem
from sandlot.domain.printable import harmless

if TYPE_CHECKING:
    from rich.progress import Progress

    from sandlot.client.async_client import AsyncClient
    from sandlot.client.async_session import AsyncSession

app = typer.Typer(help="A session's files.", no_args_is_help=True, rich_markup_mode=None)

_PIECE_BYTES = 256 * 1024
# Of one file that is copied here: a model passes; a sandbox that sends without end does not fill the disk.
_MOST_BYTES = 16 * 1024**3


@dataclass(frozen=True, slots=True)
class Place:
    """A path in the sandbox of a session or of a thread: absolute, or relative to the workspace."""

    session_id: str | None
    thread: str | None
    path: str

    async def session(self, client: AsyncClient) -> AsyncSession:
        return await session_of(client, self.session_id, self.thread)


def place(text: str | None, thread: str | None, *, whole: bool = False) -> Place:
    """``whole``: a session alone means its workspace."""
    if thread is not None:
        if not text and not whole:
            raise typer.BadParameter("say which file: with --thread, a path alone")
        return Place(None, thread, text or ".")
    session_id, _, path = (text or "").partition(":")
    if not session_id or not (path or whole):
        raise typer.BadParameter(
            f"{text!r} does not name a file of a session: write SESSION:path, or --thread"
        )
    return Place(session_id, None, path or ".")


Remote = Annotated[str, typer.Argument(metavar="SESSION:PATH")]
RemoteOrWhole = Annotated[str | None, typer.Argument(metavar="SESSION[:PATH]", show_default=False)]


@app.command()
def ls(
    ctx: typer.Context,
    remote: RemoteOrWhole = None,
    thread: OfThread = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """List a folder."""
    from sandlot.cli import display

    at = place(remote, thread, whole=True)

    async def work(client: AsyncClient) -> None:
        entries = await (await at.session(client)).files.list(at.path)
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
def cat(ctx: typer.Context, remote: Remote, thread: OfThread = None) -> None:
    """Print a file as it is."""
    from sandlot.cli import display

    at = place(remote, thread)

    async def work(client: AsyncClient) -> int:
        session = await at.session(client)
        async with aclosing(_content(client, session.id, at.path)) as pieces:
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
    remote: RemoteOrWhole = None,
    thread: OfThread = None,
) -> None:
    """Copy a file or a whole folder into a session. A path that ends in / is a folder to put it in."""
    from sandlot.cli import display

    at = place(remote, thread, whole=True)
    path = (
        at.path
        if at.path != "." and not at.path.endswith("/")
        else str(PurePosixPath(at.path) / _name(local))
    )

    async def work(client: AsyncClient) -> None:
        session = await at.session(client)
        if local.is_dir():
            with display.transfer(f"{local} → {path}", None):
                await session.files.upload(local, path)
        else:
            total = local.stat().st_size
            with display.transfer(f"{local} → {path}", total) as progress:
                await session.files.write(path, _read(local, progress), mode=local.stat().st_mode & 0o777)
        print(f"{session.id}:{harmless(path)}")

    with_client(ctx, work)


@app.command()
def get(
    ctx: typer.Context,
    remote: Remote,
    local: Annotated[Path, typer.Argument(help="Where to; a folder that exists receives it.")] = Path("."),
    thread: OfThread = None,
) -> None:
    """Copy a file or a whole folder out of a session. A file that is there already is replaced."""
    from sandlot.cli import display
    from sandlot.domain.files import FileType

    at = place(remote, thread)

    async def work(client: AsyncClient) -> None:
        session = await at.session(client)
        entry = await session.files.stat(at.path)
        target = local / _name(PurePosixPath(at.path)) if local.is_dir() else local
        if entry.type is FileType.DIRECTORY:
            with display.transfer(f"{at.path} → {target}", None):
                await session.files.download(at.path, target)
        else:
            with display.transfer(f"{at.path} → {target}", entry.size) as progress:
                await _download(_content(client, session.id, at.path), at, target, progress)
        print(harmless(str(target)))

    with_client(ctx, work)


@app.command()
def rm(
    ctx: typer.Context,
    remote: Remote,
    thread: OfThread = None,
    recursive: Annotated[bool, typer.Option("-r", "--recursive", help="A folder with all in it.")] = False,
) -> None:
    """Remove a file or a folder."""
    at = place(remote, thread)

    async def work(client: AsyncClient) -> None:
        await (await at.session(client)).files.remove(at.path, recursive=recursive)

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


def _content(client: AsyncClient, session_id: str, path: str) -> AsyncGenerator[bytes, None]:
    """For ``aclosing``: a reader that stops early must not leave the request to the garbage collector."""
    return cast("AsyncGenerator[bytes, None]", client.service.files(session_id).read(path))


async def _download(
    content: AsyncGenerator[bytes, None], at: Place, target: Path, progress: Progress
) -> None:
    """Beside the target and then over it: a broken download leaves what was there."""
    beside = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        async with aclosing(content) as pieces:
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
