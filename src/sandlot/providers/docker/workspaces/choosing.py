"""Decides what keeps a worker's workspaces: btrfs if it can, else Docker volumes.

A worker that has used btrfs has sessions whose files are only there. So it notes that in its data folder,
and never turns to volumes by itself when the btrfs is missing, for example because it is not mounted yet.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import structlog

from sandlot.domain.errors import EngineProblem, SandlotError
from sandlot.domain.workspaces.workspace import StoreKind
from sandlot.providers.docker.engine import Engine
from sandlot.providers.docker.host.users import UserRange
from sandlot.providers.docker.workspaces.btrfs.checks import check_btrfs, check_engine
from sandlot.providers.docker.workspaces.btrfs.store import BtrfsStore
from sandlot.providers.docker.workspaces.contract import DockerWorkspaceStore
from sandlot.providers.docker.workspaces.old_volumes import BtrfsBesideVolumes
from sandlot.providers.docker.workspaces.storage.file_system import (
    Quotas,
    btrfs_id,
    kernel_has_simple_quotas,
    quotas_of,
)
from sandlot.providers.docker.workspaces.storage.loop_file import LoopFile
from sandlot.providers.docker.workspaces.volumes.store import WHAT_VOLUMES_LACK, VolumeStore

log = structlog.get_logger("sandlot.workspaces")

Asked = Literal["auto", "btrfs", "volume"]

SET_UP = (
    "On the worker's machine, run `sandlot storage init --size 50G` as root, by its full path, because "
    "`sudo` does not search a virtual environment. Then restart the worker."
)
AS_ROOT = "Run the worker as root to use btrfs: docs/howto/workspaces.md."
READ_MORE = "docs/howto/workspaces.md says what btrfs needs."


@dataclass(frozen=True, slots=True)
class Choice:
    """``why``: what speaks for it, for the operator. ``fix``: what the operator can do to get more of it."""

    kind: StoreKind
    why: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Findings:
    """What a worker finds in its storage folder. ``problem``: why it cannot use it, ``fix``: the remedy.

    ``can_have_quotas``: the worker switches quotas on if they are off.
    """

    folder: Path
    problem: str = ""
    fix: str = ""
    quotas: Quotas = Quotas.OFF
    can_have_quotas: bool = True


class StoreMemory:
    """The note in a worker's data folder about the btrfs that has its workspaces."""

    def __init__(self, data_dir: Path) -> None:
        self._file = data_dir / "workspaces-on-btrfs"

    @property
    def folder(self) -> str | None:
        """The folder of that btrfs; None if the worker never used one."""
        try:
            return self._file.read_text().strip() or None
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return None  # where it cannot be read, no worker of this user starts either

    def note(self, folder: Path) -> None:
        if self.folder == str(folder):
            return
        self._file.parent.mkdir(parents=True, exist_ok=True)
        part = self._file.with_suffix(".part")
        part.write_text(f"{folder}\n")
        part.rename(self._file)


def look_at(folder: Path) -> Findings:
    """Find out whether this process can keep workspaces in the folder."""
    folder = folder.resolve()
    if os.geteuid() != 0:
        return Findings(folder, "the worker does not run as root, which mounts need", AS_ROOT)
    if btrfs_id(folder) is None:
        if LoopFile(folder).file.exists():
            return Findings(
                folder,
                f"{LoopFile(folder).file} is not mounted at {folder}",
                f"Run `sudo mount {folder}`, then restart the worker.",
            )
        return Findings(folder, f"{folder} is not on btrfs", SET_UP)
    if (problem := check_btrfs(folder)) is not None:
        return Findings(folder, _as_clause(problem), READ_MORE)
    return Findings(folder, quotas=quotas_of(folder), can_have_quotas=kernel_has_simple_quotas())


async def look_with(engine: Engine, folder: Path) -> Findings:
    """Find out whether this process and the engine can keep workspaces in the folder."""
    found = await asyncio.to_thread(look_at, folder)
    if found.problem:
        return found
    try:
        problem = await check_engine(engine, found.folder)
    except SandlotError:  # it does not answer, which the worker's start reports
        return found
    return found if problem is None else replace(found, problem=_as_clause(problem), fix=READ_MORE)


def _as_clause(sentence: str) -> str:
    return f"{sentence[:1].lower()}{sentence[1:].removesuffix('.')}"


def decide(asked: Asked, found: Findings, used_before: str | None) -> Choice:
    """Raises ``EngineProblem`` if the worker must not start.

    ``used_before``: the btrfs that has its sessions' files.
    """
    if asked == "volume":
        why = "SANDLOT_WORKSPACE_STORE is volume"
        if used_before is not None:
            why += f"; files of sessions in {used_before} cannot be reached"
        return Choice(StoreKind.VOLUME, why, "Leave SANDLOT_WORKSPACE_STORE out to use btrfs where it is.")
    if used_before not in (None, str(found.folder)):
        raise EngineProblem(
            f"The workspaces of this worker's sessions are on btrfs in {used_before}, but "
            f"SANDLOT_STORAGE_DIR is {found.folder}. Set it back. If you moved the files, delete "
            "workspaces-on-btrfs in SANDLOT_DATA_DIR."
        )
    if not found.problem:
        where = f"{found.folder} is on btrfs"
        if found.quotas is Quotas.FULL:
            why = f"{where}, but its quotas are full ones, which are too slow to use"
            fix = f"Run `sudo btrfs quota disable {found.folder}`, then restart the worker."
            return Choice(StoreKind.BTRFS, why, fix)
        if found.quotas is Quotas.OFF and not found.can_have_quotas:
            why = f"{where}, but this kernel has no simple quotas"
            return Choice(StoreKind.BTRFS, why, "Use Linux 6.7 or newer.")
        return Choice(StoreKind.BTRFS, f"{where} with simple quotas")
    if asked == "btrfs":
        raise EngineProblem(
            f"SANDLOT_WORKSPACE_STORE is btrfs, but it cannot be used: {found.problem}. {found.fix}"
        )
    if used_before is not None:
        raise EngineProblem(
            f"The workspaces of this worker's sessions are on btrfs in {used_before}, but it cannot be used: "
            f"{found.problem}. {found.fix} To start without those files, set SANDLOT_WORKSPACE_STORE=volume."
        )
    return Choice(StoreKind.VOLUME, found.problem, found.fix)


async def choose_store(
    asked: Asked,
    folder: Path,
    *,
    engine: Engine,
    owner: str,
    quota_bytes: int | None,
    data_dir: Path,
    users: UserRange | None = None,
    min_free_bytes: int | None = None,
) -> DockerWorkspaceStore:
    """Raises ``EngineProblem`` if the worker must not start.

    ``folder``: the storage of all workers on this machine. ``data_dir``: the worker's own. ``users``: whom
    sandboxes may run as. ``min_free_bytes``: what snapshots in the data folder leave free.
    """
    memory = StoreMemory(data_dir)
    found = Findings(folder) if asked == "volume" else await look_with(engine, folder)
    choice = decide(asked, found, memory.folder)
    log.info("chose what keeps workspaces", store=str(choice.kind), why=choice.why)
    volumes = VolumeStore(
        engine,
        owner,
        data_dir / "snapshots",
        note=volume_note(choice),
        users=users,
        max_bytes=quota_bytes,
        min_free_bytes=min_free_bytes,
    )
    if choice.kind is StoreKind.VOLUME:
        return volumes
    return BtrfsBesideVolumes(
        BtrfsStore(found.folder, owner, quota_bytes),
        volumes,
        opened=lambda: memory.note(found.folder),
    )


def volume_note(choice: Choice) -> str:
    """What callers and operators read about a server with volumes."""
    return f"{WHAT_VOLUMES_LACK} The reason: {choice.why}. {choice.fix}".rstrip()
