"""Reads the entries of a tar, and checks each before anybody acts on it.

Anybody may have made the archive. An entry has a plain relative path, and is a file, a folder, a symbolic
link or a hard link. Whatever else there is, is refused by its name: nothing is left out silently.
"""

from __future__ import annotations

import io
import os
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final, cast

from sandlot.domain.workspaces.objects.limits import MAX_ATTRIBUTES_BYTES, MAX_NAME_BYTES, MAX_TARGET_BYTES
from sandlot.providers.archives.compression import Decompressed
from sandlot.providers.archives.limits import (
    MAX_HEADER_BYTES,
    MAX_PATH_BYTES,
    Limits,
    damaged,
    refused,
    shown,
    too_large,
)

ATTRIBUTE: Final = "SCHILY.xattr."
_BLOCK: Final = tarfile.BLOCKSIZE
_TIME: Final = re.compile(r"(-?)([0-9]{1,18})(?:\.([0-9]{1,100}))?")
# Blocks after the end, which tar fills its last record with.
_MAX_PADDING_BYTES: Final = 16 * 1024 * 1024

Path = tuple[bytes, ...]


class Kind(Enum):
    FOLDER = 1
    FILE = 2
    SYMLINK = 3
    HARD_LINK = 4


@dataclass(frozen=True, slots=True)
class Member:
    """``path``: empty for the folder that the archive is of. ``data``: where a file has data, as start and
    length; the rest are holes. ``target``: of a symbolic link. ``linked``: what a hard link is another name
    of.
    """

    kind: Kind
    path: Path
    mode: int
    changed_ns: int
    size: int = 0
    data: tuple[tuple[int, int], ...] = ()
    target: bytes = b""
    linked: Path = ()
    attributes: tuple[tuple[bytes, bytes], ...] = ()

    @property
    def shown(self) -> str:
        return shown(b"/".join(self.path) or b".")


class Members:
    """Iterate, and read all data of each file before the next entry. ``finish`` at the end."""

    def __init__(self, source: Decompressed, limits: Limits) -> None:
        self._source = source
        self._headers = _Headers(source)
        self._limits = limits

    def __iter__(self) -> Iterator[Member]:
        entries = 0
        tar: tarfile.TarFile | None = None
        while True:
            self._headers.left = MAX_HEADER_BYTES
            try:
                if tar is None:
                    tar = tarfile.open(  # noqa: SIM115  # there is nothing to close
                        fileobj=cast(io.BufferedReader, self._headers),
                        mode="r:",
                        encoding="utf-8",
                        errors="surrogateescape",
                    )
                info = tar.next()
                tar.members = []  # type: ignore[attr-defined]  # otherwise it keeps all of them
            # Whatever the library meets that it does not expect.
            except (tarfile.TarError, ValueError, OverflowError, RecursionError, IndexError) as error:
                raise damaged(f"it is no valid tar ({type(error).__name__})") from error
            if info is None:
                break
            entries += 1
            if entries > self._limits.max_entries:
                raise too_large(f"it has more than {self._limits.max_entries:,} entries")
            yield self._checked(info, tar.offset)
        # The library takes a broken header for the end.
        if self._headers.last != bytes(_BLOCK):
            raise damaged("it ends without an end mark, or a header in it is broken")

    def read(self, size: int) -> bytes:
        """The next data of the file."""
        found = self._source.read(size)
        if len(found) < size:
            raise damaged("it ends too early")
        return found

    def finish(self) -> None:
        """Read to the end, so that all of it is checked."""
        begin = self._source.position
        while padding := self._source.read(_BLOCK):
            if padding.strip(b"\0") or self._source.position - begin > _MAX_PADDING_BYTES:
                raise refused("something follows the end of the tar")

    # --- checks -------------------------------------------------------------------------------

    def _checked(self, info: tarfile.TarInfo, end: int) -> Member:
        # The library takes what comes last: this name, or the one for programs that know no sparse files.
        info.name = info.pax_headers.get("GNU.sparse.name", info.name)
        path = _path(info.name)
        mode, changed = info.mode & 0o7777, _time(info)
        attributes = _attributes(info)
        if info.isdir():
            return Member(Kind.FOLDER, path, mode, changed, attributes=attributes)
        if not path:
            raise refused(f"{_shown(info.name)} has no name")
        if info.issym():
            target = os.fsencode(info.linkname)
            if not 0 < len(target) <= MAX_TARGET_BYTES or b"\0" in target:
                raise refused(f"{_shown(info.name)} is a symbolic link without a valid target")
            return Member(Kind.SYMLINK, path, mode, changed, target=target)
        if info.islnk():
            return Member(Kind.HARD_LINK, path, mode, changed, linked=_path(info.linkname))
        if info.isreg():
            data = _data(info, room=end - info.offset_data)
            return Member(Kind.FILE, path, mode, changed, info.size, data, attributes=attributes)
        raise refused(
            f"{_shown(info.name)} is {_KINDS.get(info.type, 'of an unknown type')}. Only files, folders, "
            "symbolic links and hard links can be imported"
        )


_KINDS: Final = {
    tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device",
    tarfile.FIFOTYPE: "a named pipe",
}


class _Headers:
    """The stream as the library sees it: it can go forward only, and a header has ``left`` bytes at most.

    ``last``: the last block that was read.
    """

    def __init__(self, source: Decompressed) -> None:
        self._source = source
        self.left = MAX_HEADER_BYTES
        self.last = b""

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= self.left:
            raise tarfile.ReadError("a header is too large")
        self.left -= size
        self.last = self._source.read(size)
        return self.last

    def tell(self) -> int:
        return self._source.position

    def seek(self, place: int) -> int:
        if place < self._source.position:
            raise tarfile.ReadError("a header leads backwards")
        self._source.skip(place - self._source.position)
        return self._source.position


def _path(name: str) -> Path:
    whole = os.fsencode(name)
    if whole.startswith(b"/"):
        raise refused(
            f"{_shown(name)} is an absolute path. Pack a folder with `tar -C FOLDER --zstd -cf FILE .`"
        )
    path = tuple(part for part in whole.split(b"/") if part not in (b"", b"."))
    if b".." in path:
        raise refused(f"{_shown(name)} leads out of the archive")
    if b"\0" in whole or len(whole) > MAX_PATH_BYTES or any(len(part) > MAX_NAME_BYTES for part in path):
        raise refused(f"{_shown(name)} is too long, or is no path")
    return path


def _time(info: tarfile.TarInfo) -> int:
    """In nanoseconds. The library rounds: a float has fewer digits than a time."""
    text = info.pax_headers.get("mtime")
    if text is None:
        return int(info.mtime) * 10**9
    match = _TIME.fullmatch(text)
    if match is None:
        raise damaged(f"{_shown(info.name)} has no valid time")
    nanoseconds = int(match[2]) * 10**9 + int((match[3] or "").ljust(9, "0")[:9])
    return -nanoseconds if match[1] else nanoseconds


def _attributes(info: tarfile.TarInfo) -> tuple[tuple[bytes, bytes], ...]:
    """Those of users: others give rights, or are of the machine that made the archive."""
    found = []
    for keyword, value in info.pax_headers.items():
        if keyword.startswith(ATTRIBUTE + "user."):
            name = keyword.removeprefix(ATTRIBUTE).replace("%3D", "=").replace("%25", "%")
            found.append((os.fsencode(name), os.fsencode(value)))
    if sum(len(name) + len(value) for name, value in found) > MAX_ATTRIBUTES_BYTES:
        raise too_large(f"{_shown(info.name)} has more than {MAX_ATTRIBUTES_BYTES:,} bytes of attributes")
    return tuple(found)


def _data(info: tarfile.TarInfo, room: int) -> tuple[tuple[int, int], ...]:
    """``room``: how much the archive has for the file's data."""
    sparse = cast(list[tuple[int, int]], info.sparse) if info.issparse() else [(0, info.size)]
    place = total = 0
    sparse = [(start, length) for start, length in sparse if length]
    for start, length in sparse:
        if length < 0 or start < place or start + length > info.size:
            raise damaged(f"{_shown(info.name)} has data outside of the file")
        place = start + length
        total += length
    if info.size < 0 or total > room:
        raise damaged(f"{_shown(info.name)} has the wrong size")
    return tuple(sparse)


def _shown(name: str) -> str:
    return shown(os.fsencode(name))
