"""Snapshots of volumes as files in the worker's data folder, and notes about what is under way.

    snapshots/<id>.tar.zst   a snapshot
    staging/                 what is half written; emptied at each start
    marks/<workspace>        the marks of its files when snapshots were taken of it or it was made from one
    filling/<workspace>      its volume is not full yet, so there is no such workspace
    paused/<container>       it was paused for a copy

Only the worker writes here, so no name in it comes from a sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Final

import zstandard

from sandlot.domain.capacity.disk import DiskSpace, disk_problem
from sandlot.domain.capacity.limits import MIB
from sandlot.domain.errors import EngineProblem, NotFound, StorageFull
from sandlot.domain.ids import is_snapshot_id, is_workspace_id
from sandlot.domain.workspaces.snapshots import no_snapshot_error
from sandlot.providers.data_folder import sync_folder
from sandlot.providers.docker.workspaces.btrfs.errors import store_errors

LEVEL: Final = 3
PIECE_BYTES: Final = MIB
_SUFFIX: Final = ".tar.zst"
# A frame that readers skip, at the end of each file: without it, the file has lost its end.
_END: Final = b"\x5e\x2a\x4d\x18" + bytes(4)
_FOLDERS: Final = ("snapshots", "staging", "marks", "filling", "paused")
# How much is written between two looks at the free space.
_CHECK_BYTES: Final = 16 * MIB


class ArchiveFolder:
    """``min_free_bytes``: what must stay free on the disk; None for the default."""

    def __init__(self, root: Path, min_free_bytes: int | None = None) -> None:
        self._root = root
        self._min_free_bytes = min_free_bytes

    def open(self) -> None:
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._root.chmod(0o700)
        shutil.rmtree(self._root / "staging", ignore_errors=True)
        for name in _FOLDERS:
            (self._root / name).mkdir(mode=0o700, exist_ok=True)

    # --- snapshots ----------------------------------------------------------------------------

    def path(self, snapshot_id: str) -> Path:
        """Where a snapshot is, or would be."""
        if not is_snapshot_id(snapshot_id):
            raise NotFound("Not a snapshot's id.")
        return self._root / "snapshots" / f"{snapshot_id}{_SUFFIX}"

    def has(self, snapshot_id: str) -> bool:
        return self.path(snapshot_id).is_file()

    def find(self, snapshot_id: str) -> Path:
        if not self.has(snapshot_id):
            raise no_snapshot_error(snapshot_id)
        return self.path(snapshot_id)

    def snapshots(self) -> frozenset[str]:
        names = (name.removesuffix(_SUFFIX) for name in self._entries("snapshots"))
        return frozenset(filter(is_snapshot_id, names))

    def delete(self, snapshot_id: str) -> None:
        self.path(snapshot_id).unlink(missing_ok=True)

    @contextlib.contextmanager
    def staged(self) -> Iterator[Path]:
        """A path for something that is being written. What is there in the end is deleted."""
        path = self._root / "staging" / secrets.token_hex(8)
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)

    def publish(self, staged: Path, snapshot_id: str) -> None:
        target = self.path(snapshot_id)
        staged.rename(target)
        sync_folder(target.parent)

    def check_space(self) -> None:
        folder = os.statvfs(self._root)
        space = DiskSpace(
            "The disk with the snapshots",
            folder.f_bavail * folder.f_frsize,
            folder.f_blocks * folder.f_frsize,
        )
        if (problem := disk_problem(space, self._min_free_bytes)) is not None:
            raise StorageFull(f"Cannot copy files: {problem}. Delete snapshots or sessions, then retry.")

    @contextlib.asynccontextmanager
    async def writer(self, path: Path) -> AsyncIterator[Writer]:
        """A new archive, which is on the disk when the context ends."""
        with store_errors("write a snapshot"), path.open("xb") as file:
            writer = Writer(file, self.check_space)
            yield writer
            await asyncio.to_thread(writer.finish)

    # --- marks --------------------------------------------------------------------------------

    def mark_of(self, workspace_id: str, snapshot_id: str) -> str | None:
        return self._marks(workspace_id).get(snapshot_id)

    def note_mark(self, workspace_id: str, snapshot_id: str, mark: str) -> None:
        """Need not be durable: files without a mark count as changed."""
        marks = {name: old for name, old in self._marks(workspace_id).items() if self.has(name)}
        path = self._note("marks", workspace_id)
        with self.staged() as staged:
            staged.write_text(json.dumps({**marks, snapshot_id: mark}))
            staged.rename(path)

    def forget_marks(self, workspace_id: str) -> None:
        with store_errors("forget a workspace"):
            self._note("marks", workspace_id).unlink(missing_ok=True)

    def marked(self) -> frozenset[str]:
        return self._entries("marks")

    def _marks(self, workspace_id: str) -> Mapping[str, str]:
        try:
            found: Any = json.loads(self._note("marks", workspace_id).read_text())
        except (FileNotFoundError, ValueError):
            return {}
        return {name: str(mark) for name, mark in found.items() if is_snapshot_id(name)}

    # --- notes about what is under way ----------------------------------------------------------

    def note_filling(self, workspace_id: str) -> None:
        _write_note(self._note("filling", workspace_id))

    def forget_filling(self, workspace_id: str) -> None:
        _remove_note(self._note("filling", workspace_id))

    def filling(self) -> frozenset[str]:
        return self._entries("filling")

    def note_paused(self, container: str) -> None:
        _write_note(self._root / "paused" / container)

    def forget_paused(self, container: str) -> None:
        _remove_note(self._root / "paused" / container)

    def paused(self) -> frozenset[str]:
        return self._entries("paused")

    def _note(self, folder: str, workspace_id: str) -> Path:
        if not is_workspace_id(workspace_id):
            raise NotFound("Not a workspace's id.")
        return self._root / folder / workspace_id

    def _entries(self, folder: str) -> frozenset[str]:
        with store_errors("list what is stored"):
            return frozenset(entry.name for entry in (self._root / folder).iterdir())


class Writer:
    """Compresses a tar into a file. ``check_space`` raises if too little is left."""

    def __init__(self, file: IO[bytes], check_space: Callable[[], None]) -> None:
        self._file = file
        self._check_space = check_space
        self._compressor = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True).compressobj()
        self._pending = bytearray()
        self._unchecked = 0

    async def write(self, data: bytes) -> None:
        self._pending += data
        if len(self._pending) >= PIECE_BYTES:
            with store_errors("write a snapshot"):
                await asyncio.to_thread(self._compress)

    def _compress(self) -> None:
        piece, self._pending = self._pending, bytearray()
        self._put(self._compressor.compress(bytes(piece)))

    def _put(self, data: bytes) -> None:
        self._unchecked += len(data)
        if self._unchecked >= _CHECK_BYTES:
            self._check_space()
            self._unchecked = 0
        self._file.write(data)

    def finish(self) -> None:
        self._compress()
        self._put(self._compressor.flush() + _END)
        self._file.flush()
        os.fsync(self._file.fileno())


async def read(path: Path) -> AsyncIterator[bytes]:
    """The tar of an archive, piece by piece."""
    with store_errors("read a snapshot"), opened(path) as tar:
        while piece := await asyncio.to_thread(_read_piece, tar):
            yield piece


@contextlib.contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    with path.open("rb") as file:
        file.seek(-min(len(_END), path.stat().st_size), os.SEEK_END)
        if file.read() != _END:
            raise EngineProblem("The snapshot is damaged on the server's disk: its end is missing.")
        file.seek(0)
        with zstandard.ZstdDecompressor().stream_reader(file) as tar:
            yield tar


def _read_piece(tar: IO[bytes]) -> bytes:
    try:
        return tar.read(PIECE_BYTES)
    except zstandard.ZstdError as error:
        raise EngineProblem(f"The snapshot is damaged on the server's disk: {error}.") from error


def _write_note(path: Path) -> None:
    with path.open("wb") as file:
        os.fsync(file.fileno())
    sync_folder(path.parent)


def _remove_note(path: Path) -> None:
    path.unlink(missing_ok=True)
    sync_folder(path.parent)
