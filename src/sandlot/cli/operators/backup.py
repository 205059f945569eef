"""``backup take|restore``: copies of what the worker on this machine keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sandlot.cli.connection import server_module
from sandlot.cli.serve import DataDir

app = typer.Typer(
    help="Back up the worker on this machine.\n\nStop it first. Its sandboxes and commands run on, and the "
    "next start takes them over.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of the backup.")]


@app.command()
def take(
    folder: Folder,
    without_workspaces: Annotated[
        bool, typer.Option("--without-workspaces", help="Leave out the storage file of the workspaces.")
    ] = False,
    data_dir: DataDir = None,
) -> None:
    """Copy what the worker keeps into a new folder.

    That is its records, secrets and artifacts, and its workspaces if they are in a file that `sandlot storage
    init` made. That needs root. The backup has secrets and users' files, and only its owner can read it.
    """
    from sandlot.cli.terminal.display import note

    place = folder.expanduser().resolve()
    taking = server_module("sandlot.wiring.backups.taking")
    taking.take(_folder(data_dir), place, with_workspaces=not without_workspaces, say=note)
    note(f"The backup is in {place}.")


@app.command()
def restore(folder: Folder, data_dir: DataDir = None) -> None:
    """Put a backup where the worker looks for it.

    This replaces nothing. Start the worker afterwards. Sessions that had a sandbox are reported as lost, and
    `sandlot sessions recreate` gives them a new one with their files.
    """
    from sandlot.cli.terminal.display import note

    place = folder.expanduser().absolute()
    backup = server_module("sandlot.wiring.backups.restoring").restore(place, _folder(data_dir), note)
    note(f"Restored worker {backup.worker} as of {backup.taken_at}.")


def _folder(chosen: Path | None) -> Path:
    from sandlot.config.data_folder import data_dir

    return data_dir() if chosen is None else chosen.expanduser().absolute()
