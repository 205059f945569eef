"""``volumes create|list|delete``: files that sessions share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sandlot.cli.connection import with_client

if TYPE_CHECKING:
    from sandlot.client.async_client import AsyncClient
    from sandlot.domain.volumes.volume import Volume, VolumeMode

app = typer.Typer(
    help="Create and manage volumes, which sessions share.", no_args_is_help=True, rich_markup_mode=None
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
VolumesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--volume",
        metavar="NAME[:MODE]",
        help="Give the new session this volume, at /volumes/NAME. MODE is rw, which one session at a time "
        "can have, or ro (the default): a copy of the files as they are now. Can be repeated.",
    ),
]


def parse_volumes(given: list[str] | None) -> dict[str, VolumeMode]:
    """Parse the values of ``--volume NAME[:MODE]``."""
    from sandlot.domain.errors import InvalidRequest
    from sandlot.domain.volumes.volume import parse_mode

    found: dict[str, VolumeMode] = {}
    for text in given or ():
        name, _, mode = text.partition(":")
        if name in found:
            raise typer.BadParameter(f"--volume names {name} twice.")
        try:
            found[name] = parse_mode(mode or "ro")
        except InvalidRequest as error:
            raise typer.BadParameter(f"--volume needs NAME, NAME:ro or NAME:rw. {error.message}") from None
    return found


@app.command()
def create(
    ctx: typer.Context,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Its name: lowercase letters, digits and . _ -")
    ],
    size: Annotated[
        str | None,
        typer.Option("--size", metavar="SIZE", help="How large it may grow, such as 2g.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Create an empty volume, and print its name."""
    volume = with_client(ctx, lambda client: client.volumes.create(name, size=size))
    if as_json:
        from sandlot.cli.terminal import display

        display.print_json(volume)
    else:
        print(volume.name)


@app.command("list")
def list_volumes(ctx: typer.Context, as_json: Json = False) -> None:
    """List volumes, oldest first."""
    from sandlot.cli.terminal import display

    async def work(client: AsyncClient) -> list[Volume]:
        return [volume async for volume in client.volumes.list()]

    volumes = with_client(ctx, work)
    if as_json:
        display.print_json(volumes)
        return
    display.print_table(
        ("VOLUME", "SIZE", "USED", "CREATED", "WRITTEN BY"),
        [
            (
                volume.name,
                display.size(volume.quota_bytes),
                "-" if volume.used_bytes is None else display.size(volume.used_bytes),
                display.timestamp(volume.created_at),
                volume.writer or "-",
            )
            for volume in volumes
        ],
        unwrapped="VOLUME",
    )


@app.command()
def delete(
    ctx: typer.Context,
    names: Annotated[list[str], typer.Argument(metavar="VOLUME...", help="The volumes' names or ids.")],
) -> None:
    """Delete volumes with their files.

    No session may have them.
    """

    async def work(client: AsyncClient) -> None:
        for name in names:
            await client.volumes.delete(name)
            print(name)

    with_client(ctx, work)
