"""Loads a snapshot into an empty folder: all of it, or nothing."""

from __future__ import annotations

import os
from collections import OrderedDict, deque
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sandlot.domain.errors import StorageFull, StorageProblem, TooLarge
from sandlot.domain.workspaces.objects.entry_names import damaged
from sandlot.providers.trees.place import empty
from sandlot.worker.workspaces.objects.bucket.chunks import ChunkStore
from sandlot.worker.workspaces.objects.bucket.transfers import Transfers
from sandlot.worker.workspaces.objects.manifests.pieces import Piece
from sandlot.worker.workspaces.objects.manifests.reading import pieces_of, read_records
from sandlot.worker.workspaces.objects.manifests.records import (
    FileRecord,
    FolderEnd,
    FolderRecord,
    HardLinkRecord,
    Head,
    MorePieces,
    Record,
    SpecialRecord,
    SymlinkRecord,
)
from sandlot.worker.workspaces.objects.trees.making import NewFile, TreeMaker

# How far the fetching of chunks is ahead of the writing, and how many used ones stay for the next files.
CHUNKS_AHEAD: Final = 8
CHUNKS_KEPT: Final = 8
_STEPS_AHEAD: Final = 2000
_FULL: Final = {28, 122}  # ENOSPC, EDQUOT

_Step = Record | Piece


@dataclass(slots=True)
class Load:
    """One load. ``run`` blocks until it is done. ``max_bytes``: how much data there may be."""

    store: ChunkStore
    transfers: Transfers
    head: Head
    into: Path
    max_bytes: int | None
    _fetched: OrderedDict[bytes, Future[bytes]] = field(default_factory=OrderedDict)
    # How often each chunk is needed by the steps that are ahead.
    _needed: dict[bytes, int] = field(default_factory=dict)
    _room: int = 0

    def run(self) -> None:
        maker = TreeMaker(self.into)
        self._room = self.head.bytes_total if self.max_bytes is None else self.max_bytes
        try:
            try:
                self._make(maker)
            finally:
                self.transfers.abandon()
                maker.close()
        except BaseException as error:
            empty(self.into)
            if isinstance(error, OSError):
                raise _problem(error) from error
            raise

    def _make(self, maker: TreeMaker) -> None:
        steps = self._looking_ahead(self._steps())
        for step in steps:
            self.transfers.check()
            if isinstance(step, Piece | MorePieces):
                raise damaged("data belongs to no file")
            if isinstance(step, FileRecord):
                with maker.file(step) as new:
                    self._fill(new, step, steps)
            elif isinstance(step, FolderRecord):
                maker.enter(step)
            elif isinstance(step, FolderEnd):
                maker.leave()
            elif isinstance(step, SymlinkRecord):
                maker.symlink(step)
            elif isinstance(step, SpecialRecord):
                maker.special(step)
            else:
                assert isinstance(step, HardLinkRecord)
                maker.hard_link(step)
        if not maker.is_complete:
            raise damaged("the manifest has no end")

    def _fill(self, new: NewFile, record: FileRecord, steps: Iterator[_Step]) -> None:
        """``steps``: those after the file's record."""
        while new.size < record.size:
            self.transfers.check()
            step = next(steps, None)
            if not isinstance(step, Piece):
                raise damaged("a file has too little data")
            if step.length > record.size - new.size:
                raise damaged("a file has too much data")
            if step.chunk is None:
                new.skip(step.length)
                continue
            self._room -= step.length
            if self._room < 0:
                raise TooLarge("The snapshot has more data than the workspace has room for.")
            content = self._take(step.chunk.name)
            new.write(memoryview(content)[step.offset : step.offset + step.length])

    # --- steps and chunks ---------------------------------------------------------------------

    def _steps(self) -> Iterator[_Step]:
        """Each record, and after a file's its pieces one by one."""
        more = False
        for record, chunks in read_records(self.store, self.head, self.transfers):
            if more != isinstance(record, MorePieces):
                raise damaged("the pieces of a file are not together")
            if isinstance(record, FileRecord):
                yield record
            if isinstance(record, FileRecord | MorePieces):
                yield from pieces_of(record.pieces, chunks)
                more = record.more
            else:
                yield record
        if more:
            raise damaged("the pieces of a file are not together")

    def _looking_ahead(self, steps: Iterator[_Step]) -> Iterator[_Step]:
        """The same steps, while the chunks of the next ones are fetched."""
        ahead: deque[_Step] = deque()
        ended = False
        while True:
            while not ended and len(ahead) < _STEPS_AHEAD and len(self._needed) < CHUNKS_AHEAD:
                step = next(steps, None)
                if step is None:
                    ended = True
                else:
                    ahead.append(step)
                    if isinstance(step, Piece) and step.chunk is not None:
                        self._want(step.chunk.name)
            if not ahead:
                return
            yield ahead.popleft()

    def _want(self, name: bytes) -> None:
        self._needed[name] = self._needed.get(name, 0) + 1
        if name not in self._fetched:
            self._fetched[name] = self.transfers.fetch(lambda: self.store.get(name))

    def _take(self, name: bytes) -> bytes:
        content = self._fetched[name].result()
        self._needed[name] -= 1
        if not self._needed[name]:
            del self._needed[name]
            self._fetched.move_to_end(name)
            unneeded = [other for other in self._fetched if other not in self._needed]
            for other in unneeded[: max(0, len(unneeded) - CHUNKS_KEPT)]:
                del self._fetched[other]
        return content


def _problem(error: OSError) -> StorageProblem:
    if error.errno in _FULL:
        return StorageFull("There is no room to load the snapshot. Delete snapshots or sessions.")
    return StorageProblem(f"The snapshot cannot be loaded: {os.strerror(error.errno or 0)}.")
