"""Saves a tree: what has changed since a base is read and sent, then the manifest."""

from __future__ import annotations

import os
import stat
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import structlog

from sandlot.domain.errors import StorageProblem
from sandlot.domain.workspaces.objects.limits import MAX_PIECES, MIN_CHUNK_BYTES
from sandlot.providers.trees.contents import attributes_of
from sandlot.providers.trees.walking import Found, Kind, open_file, walk
from sandlot.worker.workspaces.objects.bucket.chunks import ChunkStore, Sending, place_of
from sandlot.worker.workspaces.objects.bucket.transfers import Transfers
from sandlot.worker.workspaces.objects.manifests.heads import write_head
from sandlot.worker.workspaces.objects.manifests.pieces import Chunk, Piece
from sandlot.worker.workspaces.objects.manifests.previous import Previous, Unchanged
from sandlot.worker.workspaces.objects.manifests.records import (
    VERSION,
    FileRecord,
    FolderEnd,
    FolderRecord,
    HardLinkRecord,
    Head,
    SpecialRecord,
    SymlinkRecord,
)
from sandlot.worker.workspaces.objects.manifests.writing import ManifestWriter
from sandlot.worker.workspaces.objects.trees.contents import FileReader
from sandlot.worker.workspaces.objects.trees.grouping import Grouping

log = structlog.get_logger("sandlot.objects")

# How many left-out entries a save names.
MAX_NAMED: Final = 100


@dataclass(frozen=True, slots=True)
class Saved:
    """What a save did.

    bytes_sent: how much was sent, manifest included.
    bytes_total: how much data the files have together, without holes.
    entries: files, folders and links.
    files: files.
    files_read: those that were read, because they are not as in the base.
    left_out: names of devices and of other file systems in the tree. They are not saved.
    """

    bytes_sent: int
    bytes_total: int
    entries: int
    files: int
    files_read: int = 0
    left_out: tuple[bytes, ...] = ()


@dataclass(slots=True)
class Save:
    """One save. ``run`` blocks until it is done.

    ``base``: the head of a snapshot that the tree has developed from. ``limit_s``: how long it may take.
    """

    store: ChunkStore
    transfers: Transfers
    folder: Path
    tenant: str
    snapshot_id: str
    meta: bytes
    base: Head | None
    limit_s: float
    _sending: Sending = field(init=False)
    _manifest: ManifestWriter = field(init=False)
    _groups: Grouping = field(init=False)
    _reader: FileReader = field(init=False)
    _previous: Previous | None = None
    _linked: set[int] = field(default_factory=set)
    _left_out: list[bytes] = field(default_factory=list)
    _newest_ns: int = 0
    _bytes_total: int = 0
    _files: int = 0
    _files_read: int = 0

    def run(self) -> Saved:
        began = time.monotonic()
        # First of all: what is condemned later is deleted after this save has ended.
        condemned = self.store.condemned()
        self._sending = Sending(self.store, condemned)
        self._groups = Grouping(self._send_chunk)
        self._manifest = ManifestWriter(self._send_part, self._groups.complete)
        self._reader = FileReader(self.store.keys.cuts)
        if self.base is not None:
            self._previous = Previous(
                self.store,
                self.base,
                self.transfers,
                usable=lambda name: self._sending.trusts and place_of(name) not in condemned,
                failed=self._distrust,
            )
        try:
            for found in walk(self.folder):
                self.transfers.check()
                self._add(found)
            self._manifest.finish()
            self.transfers.finish()
        except BaseException:
            self.transfers.abandon()
            raise
        if time.monotonic() - began > self.limit_s:
            raise StorageProblem(
                f"Saving a snapshot took longer than {self.limit_s:,.0f} s, so it was given up. Nothing is "
                "lost: save it again, and only what is missing is sent."
            )
        return self._publish()

    def _publish(self) -> Saved:
        head = Head(
            version=VERSION,
            tenant=self.tenant,
            snapshot=self.snapshot_id,
            created_at=time.time(),
            meta=self.meta,
            parts=self._manifest.parts,
            entries=self._manifest.entries,
            files=self._files,
            bytes_total=self._bytes_total,
            bytes_sent=self._sending.bytes_sent,
            newest_ns=self._newest_ns,
            wasteful=self._manifest.wasteful(),
        )
        self._sending.count(write_head(self.store, head))
        return Saved(
            self._sending.bytes_sent,
            head.bytes_total,
            head.entries,
            head.files,
            self._files_read,
            tuple(self._left_out),
        )

    def _distrust(self) -> None:
        """The base is damaged, so its chunks may be, too: send everything that this snapshot needs."""
        self._sending.trusts = False

    # --- entries ------------------------------------------------------------------------------

    def _add(self, found: Found) -> None:
        self._newest_ns = max(self._newest_ns, found.stat.st_ctime_ns)
        if found.kind is Kind.FOLDER:
            self._enter(found)
        elif found.kind is Kind.FOLDER_END:
            if self._previous is not None:
                self._previous.leave()
            self._manifest.add(FolderEnd())
        elif found.kind is Kind.FOREIGN:
            if len(self._left_out) < MAX_NAMED:
                self._left_out.append(found.name)
        elif found.stat.st_nlink > 1 and found.stat.st_ino in self._linked:
            self._manifest.add(HardLinkRecord(found.name, found.stat.st_ino), found.name)
        else:
            if found.stat.st_nlink > 1:
                self._linked.add(found.stat.st_ino)
            self._add_first(found)

    def _enter(self, found: Found) -> None:
        if self._previous is not None:
            self._previous.enter(found.name)
        mode = stat.S_IMODE(found.stat.st_mode) & 0o3777
        record = FolderRecord(found.name, mode, *_time_of(found), attributes_of(found.folder))
        self._manifest.add(record, found.name)

    def _add_first(self, found: Found) -> None:
        """Add an entry under the first of its names."""
        inode, linked = found.stat.st_ino, found.stat.st_nlink > 1
        if found.kind is Kind.FILE:
            self._add_file(found, linked)
        elif found.kind is Kind.SYMLINK:
            target = os.fsencode(os.readlink(found.name, dir_fd=found.folder))
            self._manifest.add(SymlinkRecord(found.name, target, *_time_of(found), inode, linked), found.name)
        else:
            special = SpecialRecord(
                found.name, found.kind is Kind.SOCKET, _mode_of(found), *_time_of(found), inode, linked
            )
            self._manifest.add(special, found.name)

    def _add_file(self, found: Found, linked: bool) -> None:
        content = None if self._previous is None else self._previous.unchanged(found.name, found.stat)
        if content is None:
            content = self._read(found)
        else:
            for piece in content.pieces:
                if piece.chunk is not None:
                    self._sending.rely_on(piece.chunk.name)
        self._files += 1
        self._bytes_total += sum(piece.length for piece in content.pieces if piece.chunk is not None)
        record = FileRecord(
            found.name,
            _mode_of(found),
            *_time_of(found),
            found.stat.st_size,
            found.stat.st_ino,
            max(0, found.stat.st_ctime_ns),
            [],
            linked,
            content.sparse,
            attributes=content.attributes,
        )
        self._manifest.add_file(record, content.pieces)

    def _read(self, found: Found) -> Unchanged:
        self._files_read += 1
        opened = open_file(found)
        try:
            pieces: list[Piece] = []
            for data, length in self._reader.cuts(opened, found.stat.st_size):
                self.transfers.check()
                pieces.append(self._piece(data, length))
                if len(pieces) > MAX_PIECES:
                    raise StorageProblem("A file in the workspace is too large for the object storage.")
            sparse = found.stat.st_blocks * 512 < found.stat.st_size or any(
                piece.chunk is None for piece in pieces
            )
            return Unchanged(pieces, sparse, attributes_of(opened))
        finally:
            os.close(opened)

    def _piece(self, data: bytes | None, length: int) -> Piece:
        if data is None:
            return Piece(None, 0, length)
        if length < MIN_CHUNK_BYTES:
            return self._groups.add(data)
        return Piece(Chunk(self._send_chunk(data)), 0, length)

    # --- sending ------------------------------------------------------------------------------

    def _send_chunk(self, content: bytes) -> bytes:
        return self._send(content, part=False)

    def _send_part(self, content: bytes) -> bytes:
        return self._send(content, part=True)

    def _send(self, content: bytes, *, part: bool) -> bytes:
        name = self._sending.name(content, part=part)
        if self._sending.is_new(name):
            self.transfers.send(lambda: self._sending.send(name, content))
        return name


def _mode_of(found: Found) -> int:
    """Without the bits that give a file's user its owner's rights: workspaces are mounted without them."""
    return stat.S_IMODE(found.stat.st_mode) & 0o1777


def _time_of(found: Found) -> tuple[int, int]:
    return divmod(found.stat.st_mtime_ns, 10**9)
