"""The records of a manifest, in the order of a walk: a folder, what is in it by name, its end.

Everything is checked while it is decoded: a store may be hostile. Times are seconds and nanoseconds, because
a time in nanoseconds alone may not fit in 64 bits.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta, Struct

from sandlot.domain.workspaces.objects.limits import (
    MAX_ATTRIBUTES_BYTES,
    MAX_META_BYTES,
    MAX_NAME_BYTES,
    MAX_PARTS,
    MAX_PIECES_PER_RECORD,
    MAX_TARGET_BYTES,
)
from sandlot.worker.workspaces.objects.bucket.chunks import NAME_BYTES

VERSION = 1

Name: TypeAlias = Annotated[bytes, Meta(max_length=MAX_NAME_BYTES)]
ChunkName: TypeAlias = Annotated[bytes, Meta(min_length=NAME_BYTES, max_length=NAME_BYTES)]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Seconds: TypeAlias = Annotated[int, Meta(ge=-(2**60), le=2**60)]
Nanoseconds: TypeAlias = Annotated[int, Meta(ge=0, lt=10**9)]
# Permissions alone. Bits that give other rights are not kept: workspaces are mounted without them.
FileMode: TypeAlias = Annotated[int, Meta(ge=0, le=0o1777)]
FolderMode: TypeAlias = Annotated[int, Meta(ge=0, le=0o3777)]
Attribute: TypeAlias = tuple[Name, Annotated[bytes, Meta(max_length=MAX_ATTRIBUTES_BYTES)]]
Attributes: TypeAlias = Annotated[tuple[Attribute, ...], Meta(max_length=1024)]
# Three numbers for each piece: which chunk of the part (-1: a hole), where in it, how long.
Pieces: TypeAlias = Annotated[
    list[Annotated[int, Meta(ge=-1, le=2**63 - 1)]], Meta(max_length=3 * MAX_PIECES_PER_RECORD)
]


class FolderRecord(Struct, array_like=True, tag=1, forbid_unknown_fields=True):
    name: Name
    mode: FolderMode
    seconds: Seconds
    nanoseconds: Nanoseconds
    attributes: Attributes = ()


class FolderEnd(Struct, array_like=True, tag=2, forbid_unknown_fields=True):
    pass


class FileRecord(Struct, array_like=True, tag=3, forbid_unknown_fields=True):
    """``inode``, ``changed_ns``: of the file when it was saved; an equal file is not read again. ``linked``:
    whether it has other names. ``sparse``: whether it has holes. ``more``: whether ``MorePieces`` follow.
    """

    name: Name
    mode: FileMode
    seconds: Seconds
    nanoseconds: Nanoseconds
    size: Count
    inode: Count
    changed_ns: Count
    pieces: Pieces
    linked: bool = False
    sparse: bool = False
    more: bool = False
    attributes: Attributes = ()


class MorePieces(Struct, array_like=True, tag=4, forbid_unknown_fields=True):
    pieces: Pieces
    more: bool


class SymlinkRecord(Struct, array_like=True, tag=5, forbid_unknown_fields=True):
    name: Name
    target: Annotated[bytes, Meta(min_length=1, max_length=MAX_TARGET_BYTES)]
    seconds: Seconds
    nanoseconds: Nanoseconds
    inode: Count
    linked: bool = False


class SpecialRecord(Struct, array_like=True, tag=6, forbid_unknown_fields=True):
    """A named pipe, or the name of a Unix socket."""

    name: Name
    socket: bool
    mode: FileMode
    seconds: Seconds
    nanoseconds: Nanoseconds
    inode: Count
    linked: bool = False


class HardLinkRecord(Struct, array_like=True, tag=7, forbid_unknown_fields=True):
    """Another name of the ``linked`` entry with this inode, which came before it."""

    name: Name
    inode: Count


Record: TypeAlias = (
    FolderRecord | FolderEnd | FileRecord | MorePieces | SymlinkRecord | SpecialRecord | HardLinkRecord
)


class Part(Struct, array_like=True, forbid_unknown_fields=True):
    chunks: list[ChunkName]
    records: list[Record]


class Head(Struct, forbid_unknown_fields=True):
    """The manifest itself. ``newest_ns``: the newest change in the tree. ``wasteful``: chunks of which the
    snapshot needs little; the next one saves their files anew.
    """

    version: int
    tenant: str
    snapshot: str
    created_at: float
    meta: Annotated[bytes, Meta(max_length=MAX_META_BYTES)]
    parts: Annotated[list[ChunkName], Meta(max_length=MAX_PARTS)]
    entries: Count
    files: Count
    bytes_total: Count
    bytes_sent: Count
    newest_ns: Count
    wasteful: list[ChunkName] = []


encoder = msgspec.msgpack.Encoder()
part_decoder = msgspec.msgpack.Decoder(Part)
head_decoder = msgspec.msgpack.Decoder(Head)
