"""Writes a manifest in parts. A part waits until every chunk that it names is complete."""

from __future__ import annotations

import zlib
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from sandlot.domain.errors import TooLarge
from sandlot.domain.workspaces.objects.limits import (
    MAX_PART_BYTES,
    MAX_PARTS,
    MAX_PIECES_PER_RECORD,
    MIN_PART_BYTES,
)
from sandlot.worker.workspaces.objects.bucket.chunks import NAME_BYTES, length_of
from sandlot.worker.workspaces.objects.manifests.pieces import Piece
from sandlot.worker.workspaces.objects.manifests.records import (
    FileRecord,
    FolderRecord,
    MorePieces,
    Part,
    Record,
    SymlinkRecord,
    encoder,
)

# A part ends after a name whose hash has these bits zero: one in 64.
_PART_ENDS: Final = 63
# A rough size of a record, beside its name and its pieces.
_RECORD_BYTES: Final = 48
_PIECE_BYTES: Final = 8
# How many records may wait for one chunk.
MAX_WAITING: Final = 20_000
# A chunk is wasteful if the snapshot needs less than a quarter of it.
_WASTEFUL: Final = 4
# Each save of few files leaves a small chunk. So many may add up until they are put together.
_SMALL_BYTES: Final = 64 * 1024
_MAX_SMALL: Final = 64
# Of wasteful chunks together: what the next save sends for them at most.
MAX_RENEWED_BYTES: Final = 2 * 1024 * 1024


@dataclass(slots=True)
class _Part:
    records: list[tuple[Record, Sequence[Piece]]] = field(default_factory=list)
    size: int = 0


class ManifestWriter:
    """``send``: takes the content of a part and returns its name. ``complete``: ends the chunk that small
    files are now put in, so that nothing waits for it any more.
    """

    def __init__(self, send: Callable[[bytes], bytes], complete: Callable[[], None]) -> None:
        self.parts: list[bytes] = []
        self.entries = 0
        self._send = send
        self._complete = complete
        self._open = _Part()
        self._waiting: deque[_Part] = deque()
        self._waiting_records = 0
        self._used: Counter[bytes] = Counter()

    def add(self, record: Record, name: bytes = b"") -> None:
        self.entries += bool(name)
        self._add(record, (), name)

    def add_file(self, record: FileRecord, pieces: Sequence[Piece]) -> None:
        """``record`` without its pieces."""
        self.entries += 1
        step = MAX_PIECES_PER_RECORD
        record.more = len(pieces) > step
        self._add(record, pieces[:step], record.name)
        for start in range(step, len(pieces), step):
            rest = MorePieces([], more=start + step < len(pieces))
            self._add(rest, pieces[start : start + step], b"")

    def finish(self) -> None:
        self._complete()
        self._waiting.append(self._open)
        self._write_waiting()

    def wasteful(self) -> list[bytes]:
        """The chunks whose files the next snapshot saves anew, those first that cost least to send."""
        small = [name for name in self._used if length_of(name) < _SMALL_BYTES]
        candidates = {name for name, used in self._used.items() if used * _WASTEFUL < length_of(name)}
        if len(small) > _MAX_SMALL:
            candidates.update(small)
        found = []
        room = MAX_RENEWED_BYTES
        for name in sorted(candidates, key=lambda name: (self._used[name], name)):
            room -= self._used[name]
            if room < 0:
                break
            found.append(name)
        return found

    def _add(self, record: Record, pieces: Sequence[Piece], name: bytes) -> None:
        part = self._open
        part.records.append((record, pieces))
        part.size += _weight(record) + len(name) + len(pieces) * (_PIECE_BYTES + NAME_BYTES // 2)
        ends = part.size >= MIN_PART_BYTES and name and zlib.crc32(name) & _PART_ENDS == 0
        if ends or part.size >= MAX_PART_BYTES:
            self._end_part()

    def _end_part(self) -> None:
        self._waiting.append(self._open)
        self._waiting_records += len(self._open.records)
        self._open = _Part()
        if self._waiting_records >= MAX_WAITING:
            self._complete()
        self._write_waiting()

    def _write_waiting(self) -> None:
        while self._waiting and all(_is_complete(pieces) for _, pieces in self._waiting[0].records):
            part = self._waiting.popleft()
            self._waiting_records = max(0, self._waiting_records - len(part.records))
            if part.records:
                self._write(part)

    def _write(self, part: _Part) -> None:
        if len(self.parts) >= MAX_PARTS:
            raise TooLarge("The workspace has too many files for the object storage.")
        names: dict[bytes, int] = {}
        for record, pieces in part.records:
            if isinstance(record, FileRecord | MorePieces):
                record.pieces = self._numbers(pieces, names)
        encoded = encoder.encode(Part(list(names), [record for record, _ in part.records]))
        self.parts.append(self._send(encoded))

    def _numbers(self, pieces: Sequence[Piece], names: dict[bytes, int]) -> list[int]:
        numbers: list[int] = []
        for chunk, offset, length in pieces:
            if chunk is None:
                numbers += (-1, 0, length)
            else:
                numbers += (names.setdefault(chunk.name, len(names)), offset, length)
                self._used[chunk.name] += length
        return numbers


def _weight(record: Record) -> int:
    if isinstance(record, SymlinkRecord):
        return _RECORD_BYTES + len(record.target)
    if isinstance(record, FileRecord | FolderRecord):
        return _RECORD_BYTES + sum(len(name) + len(value) for name, value in record.attributes)
    return _RECORD_BYTES


def _is_complete(pieces: Sequence[Piece]) -> bool:
    return all(chunk is None or chunk.name for chunk, _, _ in pieces)
