"""``snapshots create|list|diff|restore|delete``: keeps a session's files as they are, and gives them back."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from sandlot.cli.connection import with_client

if TYPE_CHECKING:
    from sandlot.client.async_client import AsyncClient
    from sandlot.domain.workspaces.snapshots import Difference, Restored, Snapshot

app = typer.Typer(
    help="Keep a session's files, and restore them.", no_args_is_help=True, rich_markup_mode=None
)

SessionId = Annotated[str, typer.Argument(metavar="SESSION", help="The session's id.")]
SnapshotId = Annotated[str, typer.Argument(metavar="SNAPSHOT", help="The snapshot's id.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def create(
    ctx: typer.Context,
    session_id: SessionId,
    name: Annotated[
        str,
        typer.Option(
            "--name",
            metavar="NAME",
            help="Your name for it. The server keeps a limited number of snapshots without a name.",
            show_default=False,
        ),
    ] = "",
    labels: Annotated[
        list[str] | None,
        typer.Option("--label", metavar="NAME=VALUE", help="A value of your own. Can be repeated."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Take a snapshot of a session's files."""
    parsed = _parse_labels(labels)

    async def work(client: AsyncClient) -> Snapshot:
        return await (await client.get(session_id)).workspace.snapshot(name, labels=parsed)

    snapshot = with_client(ctx, work)
    if as_json:
        _print_json(snapshot)
    else:
        print(snapshot.id)


@app.command("list")
def list_snapshots(
    ctx: typer.Context,
    session_id: Annotated[
        str | None,
        typer.Argument(metavar="[SESSION]", help="List only the snapshots of this session."),
    ] = None,
    as_json: Json = False,
) -> None:
    """List snapshots, oldest first."""
    from sandlot.cli.terminal import display

    async def work(client: AsyncClient) -> list[Snapshot]:
        return [snapshot async for snapshot in client.snapshots(session_id)]

    snapshots = with_client(ctx, work)
    if as_json:
        _print_json(snapshots)
        return
    display.print_table(
        ("SNAPSHOT", "SESSION", "NAME", "CREATED", "SIZE", "LABELS"),
        [
            (
                snapshot.id,
                snapshot.session_id,
                snapshot.name or "-",
                display.timestamp(snapshot.created_at),
                "-" if snapshot.unique_bytes is None else display.size(snapshot.unique_bytes),
                ", ".join(f"{name}={value}" for name, value in sorted(snapshot.labels.items())) or "-",
            )
            for snapshot in snapshots
        ],
        unwrapped="SNAPSHOT",
    )


@app.command()
def diff(
    ctx: typer.Context,
    snapshot_id: SnapshotId,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="SNAPSHOT",
            help="Compare this later snapshot, instead of the files that the session has now.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show how files differ from a snapshot.

    `+` marks what was added, `~` what was changed and `-` what was removed. Paths are relative to /workspace.
    """

    async def work(client: AsyncClient) -> Difference:
        return await client.service.compare_snapshot(snapshot_id, to=to)

    difference = with_client(ctx, work)
    if as_json:
        _print_json(difference)
    else:
        _print_difference(difference)


@app.command()
def restore(
    ctx: typer.Context, session_id: SessionId, snapshot_id: SnapshotId, as_json: Json = False
) -> None:
    """Give a session the files of a snapshot.

    Every process of the session ends, and it gets a new sandbox. The snapshot may be of another session.
    """

    async def work(client: AsyncClient) -> Restored:
        return await (await client.get(session_id)).workspace.restore(snapshot_id)

    print_restored(with_client(ctx, work), as_json)


@app.command()
def delete(
    ctx: typer.Context,
    snapshot_ids: Annotated[list[str], typer.Argument(metavar="SNAPSHOT...", help="The snapshots' ids.")],
) -> None:
    """Delete snapshots.

    Sessions that began from them keep their files.
    """

    async def work(client: AsyncClient) -> None:
        for snapshot_id in snapshot_ids:
            await client.delete_snapshot(snapshot_id)
            print(snapshot_id)

    with_client(ctx, work)


def print_restored(restored: Restored, as_json: bool) -> None:
    """Print what a session has after its files were replaced."""
    from sandlot.cli.terminal import display

    if as_json:
        from sandlot.wire.workspaces.snapshot_bodies import RestoredBody

        _print_json(RestoredBody.of(restored))
        return
    display.print_fields(
        [
            ("session", restored.session.id),
            ("generation", str(restored.session.generation)),
            ("snapshot", restored.snapshot),
            ("lost", ", ".join(restored.lost) or "nothing"),
            ("kept", ", ".join(restored.kept) or "-"),
        ]
    )


def _parse_labels(given: list[str] | None) -> dict[str, str]:
    found = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise typer.BadParameter(f"--label needs NAME=VALUE, not {text!r:.80}.")
        found[name] = value
    return found


def _print_difference(difference: Difference) -> None:
    from sandlot.cli.terminal.display import note
    from sandlot.domain.text.printable import escape_unprintable

    lines = sorted(
        (path, mark, style)
        for mark, style, paths in (
            ("+", "green", difference.added),
            ("~", "yellow", difference.changed),
            ("-", "red", difference.removed),
        )
        for path in paths
    )
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.text import Text

        console = Console()
        for path, mark, style in lines:
            console.print(Text(f"{mark} {escape_unprintable(path)}", style=style), soft_wrap=True)
    else:
        for path, mark, _ in lines:
            print(f"{mark} {escape_unprintable(path)}")
    if difference.truncated:
        note("There are more differences than are shown.")
    elif not lines:
        note("No differences.")


def _print_json(value: object) -> None:
    from sandlot.cli.terminal import display

    display.print_json(value)
