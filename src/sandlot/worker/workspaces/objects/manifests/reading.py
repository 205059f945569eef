"""Reads a manifest record by record, a few parts ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Final

import msgspec

from sandlot.domain.workspaces.objects.entry_names import damaged
from sandlot.worker.workspaces.objects.bucket.chunks import ChunkStore, length_of
from sandlot.worker.workspaces.objects.bucket.transfers import Transfers
from sandlot.worker.workspaces.objects.manifests.pieces import Chunk, Piece
from sandlot.worker.workspaces.objects.manifests.records import Head, Part, Record, part_decoder

PARTS_AHEAD: Final = 4


def read_part(store: ChunkStore, name: bytes) -> Part:
    try:
        return part_decoder.decode(store.get(name, part=True))
    except msgspec.MsgspecError:
        raise damaged("a part of a manifest has no valid content") from None


def read_records(
    store: ChunkStore, head: Head, transfers: Transfers
) -> Iterator[tuple[Record, Sequence[Chunk]]]:
    """Each record, with the chunks of its part."""
    names = iter(head.parts)
    ahead: deque[Future[Part]] = deque()
    while True:
        while len(ahead) < PARTS_AHEAD and (name := next(names, None)) is not None:
            ahead.append(transfers.fetch(lambda name=name: read_part(store, name)))  # type: ignore[misc]
        if not ahead:
            return
        part = ahead.popleft().result()
        chunks = [Chunk(name) for name in part.chunks]
        for record in part.records:
            yield record, chunks


def pieces_of(numbers: Sequence[int], chunks: Sequence[Chunk]) -> Iterator[Piece]:
    """Each piece lies inside its chunk."""
    if len(numbers) % 3:
        raise damaged("a file has no valid pieces")
    for place in range(0, len(numbers), 3):
        index, offset, length = numbers[place : place + 3]
        if offset < 0 or length <= 0 or index >= len(chunks):
            raise damaged("a file has no valid pieces")
        if index < 0:
            yield Piece(None, 0, length)
            continue
        chunk = chunks[index]
        if offset + length > length_of(chunk.name):
            raise damaged("a file has no valid pieces")
        yield Piece(chunk, offset, length)
