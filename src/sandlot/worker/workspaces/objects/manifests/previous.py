"""The manifest that a save is based on, read beside the walk: unchanged files are not read again.

Both are in the same order, so this holds a few records only. A file is unchanged if its inode, size and both
times are. Nobody inside a sandbox can set the time of a change. But two changes in one tick of the kernel's
clock have the same: so a file that was changed near the newest change in the tree is read again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import structlog

from sandlot.domain.errors import SandlotError
from sandlot.worker.workspaces.objects.bucket.chunks import ChunkStore
from sandlot.worker.workspaces.objects.bucket.transfers import Transfers
from sandlot.worker.workspaces.objects.manifests.pieces import Chunk, Piece
from sandlot.worker.workspaces.objects.manifests.reading import pieces_of, read_records
from sandlot.worker.workspaces.objects.manifests.records import (
    FileRecord,
    FolderEnd,
    FolderRecord,
    Head,
    MorePieces,
    Record,
)

log = structlog.get_logger("sandlot.objects")

# Several ticks of the slowest clock that a kernel is built with.
_TICK_NS: Final = 100_000_000


class Unchanged(NamedTuple):
    pieces: list[Piece]
    sparse: bool
    attributes: tuple[tuple[bytes, bytes], ...]


class Previous:
    """``usable``: whether a chunk may be relied on. ``failed``: called once, if the manifest cannot be read.
    The walk then goes on without it.
    """

    def __init__(
        self,
        store: ChunkStore,
        head: Head,
        transfers: Transfers,
        *,
        usable: Callable[[bytes], bool],
        failed: Callable[[], None],
    ) -> None:
        self._wasteful = frozenset(head.wasteful)
        self._usable = usable
        self._failed = failed
        self._trusted_before = head.newest_ns - _TICK_NS
        self._records = read_records(store, head, transfers)
        self._peeked: tuple[Record, Sequence[Chunk]] | None = None
        # Folders of the walk that the manifest does not have, inside each other.
        self._unknown = 0
        self._snapshot = head.snapshot

    def enter(self, name: bytes) -> None:
        if self._unknown or not isinstance(self._seek(name), FolderRecord):
            self._unknown += 1
        else:
            self._next()

    def leave(self) -> None:
        if self._unknown:
            self._unknown -= 1
            return
        while (record := self._peek()) is not None and not isinstance(record, FolderEnd):
            self._skip()
        self._next()

    def unchanged(self, name: bytes, now: os.stat_result) -> Unchanged | None:
        """What the manifest says of a file, if that has not changed; ``None``: read it."""
        found = None if self._unknown else self._seek(name)
        if not isinstance(found, FileRecord) or not self._is_same(found, now):
            return None
        try:
            pieces = list(self._pieces(found))
        except SandlotError as error:
            self._fail(error)
            return None
        if sum(piece.length for piece in pieces) != found.size:
            return None
        if not all(piece.chunk is None or self._may_use(piece.chunk.name) for piece in pieces):
            return None
        return Unchanged(pieces, found.sparse, found.attributes)

    def _pieces(self, record: FileRecord) -> Iterator[Piece]:
        numbers, chunks, more = record.pieces, self._chunks(), record.more
        self._next()
        while True:
            yield from pieces_of(numbers, chunks)
            if not more:
                return
            following, chunks = self._peek(), self._chunks()
            if not isinstance(following, MorePieces):
                return
            numbers, more = following.pieces, following.more
            self._next()

    def _is_same(self, record: FileRecord, now: os.stat_result) -> bool:
        return (
            record.inode == now.st_ino
            and record.size == now.st_size
            and record.changed_ns == now.st_ctime_ns < self._trusted_before
            and (record.seconds, record.nanoseconds) == divmod(now.st_mtime_ns, 10**9)
        )

    def _may_use(self, chunk_name: bytes) -> bool:
        return chunk_name not in self._wasteful and self._usable(chunk_name)

    # --- the stream ---------------------------------------------------------------------------

    def _seek(self, name: bytes) -> Record | None:
        """The record of this name in the current folder."""
        while (record := self._peek()) is not None and not isinstance(record, FolderEnd):
            there = b"" if isinstance(record, MorePieces) else record.name
            if there == name and not isinstance(record, MorePieces):
                return record
            if there > name:
                return None
            self._skip()
        return None

    def _skip(self) -> None:
        """Go past an entry, and past everything in it."""
        depth = 0
        while (record := self._peek()) is not None:
            self._next()
            depth += isinstance(record, FolderRecord) - isinstance(record, FolderEnd)
            if depth <= 0:
                return

    def _peek(self) -> Record | None:
        if self._peeked is None:
            try:
                self._peeked = next(self._records, None)
            except SandlotError as error:
                self._fail(error)
        return None if self._peeked is None else self._peeked[0]

    def _chunks(self) -> Sequence[Chunk]:
        return () if self._peeked is None else self._peeked[1]

    def _next(self) -> None:
        self._peeked = None

    def _fail(self, error: SandlotError) -> None:
        log.warning("cannot read the previous manifest", snapshot=self._snapshot, error=error.message)
        self._records = iter(())
        self._peeked = None
        self._failed()
