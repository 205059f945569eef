"""``storage init|status``: the btrfs that this machine's workspaces are on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sandlot.cli.connection import server_module

if TYPE_CHECKING:
    from sandlot.providers.docker.workspaces.storage.status import StorageStatus

app = typer.Typer(
    help="Set up storage for workspaces on this machine.\n\nOn btrfs, workspaces have quotas, and snapshots "
    "and forks take milliseconds. On Docker volumes, there are no quotas, and both are full copies.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_BLOCK = 4096
_ROOM = "sandlot.providers.docker.workspaces.storage"
StoragePath = Annotated[
    Path | None,
    typer.Option(
        "--path",
        metavar="FOLDER",
        help="The folder of the workspaces.",
        show_default="SANDLOT_STORAGE_DIR, or /var/lib/sandlot/storage",
    ),
]


@app.command()
def init(
    size: Annotated[
        str | None,
        typer.Option(
            "--size",
            metavar="SIZE",
            help="How large the storage file may grow: 50G. Run init again with a larger size to grow it.",
        ),
    ] = None,
    path: StoragePath = None,
    overcommit: Annotated[
        bool, typer.Option("--overcommit", help="Allow a size that the machine's disk has no room for.")
    ] = False,
    fstab: Annotated[Path, typer.Option("--fstab", metavar="FILE", hidden=True)] = Path("/etc/fstab"),
) -> None:
    """Set up btrfs for workspaces. Needs root.

    It is a sparse file, FOLDER.btrfs, that is mounted at FOLDER, now and at each boot. If FOLDER is on a
    btrfs already, that one is used, without --size. Run init again to finish what was interrupted: it
    changes nothing that is done.
    """
    from sandlot.cli.terminal.display import note

    loop_file = server_module(f"{_ROOM}.loop_file")
    boot_mount = server_module(f"{_ROOM}.boot_mount")
    folder = _folder(path)
    storage = loop_file.LoopFile(folder)
    before = _examined(folder, fstab)
    if _is_on_btrfs(folder) and not storage.file.exists():
        _take_folder(folder, size)
    else:
        asked = None if size is None else _bytes(size)
        loop_file.set_up(storage, asked, overcommit=overcommit, say=note)
        if boot_mount.mount_at_boot(storage, fstab):
            note(f"{fstab} mounts it at boot.")
    _show(_examined(folder, fstab))
    if folder != _folder(None):
        note(f"Set SANDLOT_STORAGE_DIR={folder} for the worker.")
    if not before.mounted:
        note("Restart the worker to use it.")


@app.command()
def status(
    path: StoragePath = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    fstab: Annotated[Path, typer.Option("--fstab", metavar="FILE", hidden=True)] = Path("/etc/fstab"),
) -> None:
    """Show what workspaces are stored on."""
    from sandlot.cli.terminal.display import print_json

    found = _examined(_folder(path), fstab)
    if as_json:
        print_json(found)
    else:
        _show(found)


def _folder(path: Path | None) -> Path:
    """Without links: the mount table has none."""
    from sandlot.config.workspaces.storage_folder import storage_dir

    return (path or storage_dir()).expanduser().resolve()


def _is_on_btrfs(folder: Path) -> bool:
    btrfs_id = server_module(f"{_ROOM}.file_system").btrfs_id
    nearest = next(place for place in (folder, *folder.parents) if place.exists())
    return btrfs_id(nearest) is not None


def _take_folder(folder: Path, size: str | None) -> None:
    import os

    from sandlot.cli.terminal.display import note
    from sandlot.domain.errors import EngineProblem

    file_system = server_module(f"{_ROOM}.file_system")
    if size is not None:
        raise typer.BadParameter(f"{folder} is on a btrfs already, which has its own size. Leave out --size.")
    if os.geteuid() != 0:
        raise EngineProblem("Only root can set up storage. Run it with sudo.")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    had = file_system.quotas_of(folder)
    has = file_system.enable_quotas(folder)
    if had is not has:
        note(f"Switched on {has} quotas for the whole file system that {folder} is on.")


def _bytes(text: str) -> int:
    from sandlot.config.registry.recipes import bytes_of_size
    from sandlot.domain.errors import InvalidRequest

    try:
        return bytes_of_size(text) // _BLOCK * _BLOCK
    except InvalidRequest as error:
        raise typer.BadParameter(f"{error.message} For a storage file: 50G.") from error


def _examined(folder: Path, fstab: Path) -> StorageStatus:
    status: StorageStatus = server_module(f"{_ROOM}.status").examine(folder, fstab)
    return status


def _show(found: StorageStatus) -> None:
    from sandlot.cli.terminal.display import note, print_fields, size

    if found.kind == "none":
        print_fields([("kind", "none: workspaces are Docker volumes"), ("path", found.path)])
        note("To set up storage, as root: sandlot storage init --size 50G")
        return
    sizes = (("size", found.size), ("used", found.used), ("free", found.free))
    fields = [("kind", str(found.kind)), ("path", found.path)]
    if found.file is not None:
        fields.append(("file", found.file))
    fields += [(name, size(count)) for name, count in sizes if count is not None]
    if found.file_taken is not None and found.disk_free is not None:
        fields.append(("file takes", f"{size(found.file_taken)} of its disk, {size(found.disk_free)} free"))
    fields.append(("quotas", str(found.quotas or "unknown")))
    fields.append(("mounted", "yes" if found.mounted else "no"))
    if found.boot_mount is not None:
        fields.append(("mounted at boot", "yes" if found.boot_mount else "no"))
    print_fields(fields)
    for problem in found.problems:
        note(problem)
