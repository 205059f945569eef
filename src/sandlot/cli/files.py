"""``files ls|cat|put|get|mkdir|rm``: the files of a session, written ``SESSION:path`` as with scp.

With ``--thread`` the session is that of the conversation, and only the path is given.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, cast

import typer

from sandlot.cli.chosen import ThreadOption, find_session
from sandlot.cli.connection import with_client
from sandlot.domain.errors import FileProblem
from sandlot.domain.text.printable import escape_unprintable

if TYPE_CHECKING:
    from rich.progress import Progress

    from sandlot.client.async_client import AsyncClient
    from sandlot.client.async_session import AsyncSession

app = typer.Typer(
    help="List, copy and remove the files of a session.", no_args_is_help=True, rich_markup_mode=None
)

_PIECE_BYTES = 256 * 1024
# The most that is copied of one file: enough for a model, but an endless one must not fill the
# disk.
_MAX_DOWNLOAD_BYTES = 16 * 1024**3


@dataclass(frozen=True, slots=True)
class RemotePath:
    """A path in the sandbox of a session or of a thread: absolute, or relative to the workspace."""

    session_id: str | None
    thread: str | None
    path: str

    async def session(self, client: AsyncClient) -> AsyncSession:
        return await find_session(client, self.session_id, self.thread)


def parse_remote(text: str | None, thread: str | None, *, path_optional: bool = False) -> RemotePath:
    """Parse ``SESSION:path``. ``path_optional``: a session alone means its workspace."""
    if thread is not None:
        if not text and not path_optional:
            raise typer.BadParameter("Missing path. With --thread, pass only the path.")
        return RemotePath(None, thread, text or ".")
    session_id, _, path = (text or "").partition(":")
    if not session_id or not (path or path_optional):
        form = "SESSION or SESSION:PATH" if path_optional else "SESSION:PATH"
        problem = f"{text!r} is not a path in a session." if text else "Missing session."
        raise typer.BadParameter(f"{problem} Write {form}, or use --thread.")
    return RemotePath(session_id, None, path or ".")


_PATH = "Session and path. A relative path starts at /workspace. With --thread, pass only the path."
Remote = Annotated[str, typer.Argument(metavar="SESSION:PATH", help=_PATH)]
RemoteOrWhole = Annotated[
    str | None, typer.Argument(metavar="SESSION[:PATH]", help=_PATH, show_default=False)
]


@app.command()
def ls(
    ctx: typer.Context,
    remote: RemoteOrWhole = None,
    thread: ThreadOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List a folder of a session."""
    from sandlot.cli.terminal import display

    location = parse_remote(remote, thread, path_optional=True)

    async def work(client: AsyncClient) -> None:
        entries = await (await location.session(client)).files.list(location.path)
        if as_json:
            display.print_json(entries)
            return
        rows = [
            (
                entry.type,
                f"{entry.mode & 0o7777:04o}",
                display.size(entry.size),
                display.timestamp(entry.mtime_ms / 1000),
                entry.name + (f" -> {entry.target}" if entry.target else ""),
            )
            for entry in entries
        ]
        display.print_table(("TYPE", "MODE", "SIZE", "CHANGED", "NAME"), rows)

    with_client(ctx, work)


@app.command()
def cat(ctx: typer.Context, remote: Remote, thread: ThreadOption = None) -> None:
    """Print a file."""
    from sandlot.cli.terminal import display

    location = parse_remote(remote, thread)

    async def work(client: AsyncClient) -> int:
        session = await location.session(client)
        async with aclosing(_content(client, session.id, location.path)) as pieces:
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
    local: Annotated[
        Path,
        typer.Argument(metavar="LOCAL", exists=True, readable=True, help="File or folder on this machine."),
    ],
    remote: RemoteOrWhole = None,
    thread: ThreadOption = None,
) -> None:
    """Copy a file or folder into a session.

    If the path ends in /, the copy is placed in that folder.
    """
    from sandlot.cli.terminal import display

    location = parse_remote(remote, thread, path_optional=True)
    path = (
        location.path
        if location.path != "." and not location.path.endswith("/")
        else str(PurePosixPath(location.path) / _name(local))
    )

    async def work(client: AsyncClient) -> None:
        session = await location.session(client)
        if local.is_dir():
            with display.transfer(f"{local} → {path}", None):
                await session.files.upload(local, path)
        else:
            total = local.stat().st_size
            with display.transfer(f"{local} → {path}", total) as progress:
                await session.files.write(path, _read(local, progress), mode=local.stat().st_mode & 0o777)
        print(f"{session.id}:{escape_unprintable(path)}")

    with_client(ctx, work)


@app.command()
def get(
    ctx: typer.Context,
    remote: Remote,
    local: Annotated[
        Path,
        typer.Argument(metavar="LOCAL", help="Path of the copy, or an existing folder to place it in."),
    ] = Path("."),
    thread: ThreadOption = None,
) -> None:
    """Copy a file or folder out of a session.

    An existing file is replaced.
    """
    from sandlot.cli.terminal import display
    from sandlot.domain.files import FileType

    location = parse_remote(remote, thread)

    async def work(client: AsyncClient) -> None:
        session = await location.session(client)
        entry = await session.files.stat(location.path)
        target = local / _name(PurePosixPath(location.path)) if local.is_dir() else local
        if entry.type is FileType.DIRECTORY:
            with display.transfer(f"{location.path} → {target}", None):
                await session.files.download(location.path, target)
        else:
            with display.transfer(f"{location.path} → {target}", entry.size) as progress:
                await _download(_content(client, session.id, location.path), location, target, progress)
        print(escape_unprintable(str(target)))

    with_client(ctx, work)


@app.command()
def mkdir(ctx: typer.Context, remote: Remote, thread: ThreadOption = None) -> None:
    """Create a folder, and missing folders above it.

    An existing folder is no error.
    """
    location = parse_remote(remote, thread)

    async def work(client: AsyncClient) -> None:
        await (await location.session(client)).files.mkdir(location.path)

    with_client(ctx, work)


@app.command()
def rm(
    ctx: typer.Context,
    remote: Remote,
    thread: ThreadOption = None,
    recursive: Annotated[
        bool, typer.Option("-r", "--recursive", help="Remove a folder with everything in it.")
    ] = False,
) -> None:
    """Remove a file or folder of a session."""
    location = parse_remote(remote, thread)

    async def work(client: AsyncClient) -> None:
        await (await location.session(client)).files.remove(location.path, recursive=recursive)

    with_client(ctx, work)


def _name(path: Path | PurePosixPath) -> str:
    """Return the file name that the user typed. A sandbox's answer must never name a local file."""
    name = path.resolve().name if isinstance(path, Path) else path.name
    if name in ("", ".", ".."):
        raise typer.BadParameter(f"{path} has no file name. Pass a target path that ends in a file name.")
    return name


async def _read(local: Path, progress: Progress) -> AsyncIterator[bytes]:
    with local.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            yield piece
            progress.advance(progress.task_ids[0], len(piece))


def _content(client: AsyncClient, session_id: str, path: str) -> AsyncGenerator[bytes, None]:
    """Return a generator for ``aclosing``.

    If reading stops early, the request ends at once and not when the garbage is collected.
    """
    return cast("AsyncGenerator[bytes, None]", client.service.files(session_id).read(path))


async def _download(
    content: AsyncGenerator[bytes, None], location: RemotePath, target: Path, progress: Progress
) -> None:
    """Download to a temporary file first, so that a failed download keeps the existing file."""
    partial = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        async with aclosing(content) as pieces:
            with partial.open("xb") as file:
                async for piece in pieces:
                    if file.tell() + len(piece) > _MAX_DOWNLOAD_BYTES:
                        raise _too_large(location)
                    file.write(piece)
                    progress.advance(progress.task_ids[0], len(piece))
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def _too_large(location: RemotePath) -> FileProblem:
    return FileProblem(
        f"{location.path} is larger than {_MAX_DOWNLOAD_BYTES} bytes, the most that `files get` copies."
        " `sandlot files cat` has no limit.",
        reason="too_large",
        path=location.path,
    )
