"""What is in an archive, and how two differ. Bounded: the names and their number are a sandbox's."""

from __future__ import annotations

import hashlib
import tarfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from sandlot.domain.capacity.limits import MIB
from sandlot.domain.errors import EngineProblem
from sandlot.domain.workspaces.snapshots import MAX_DIFFERENCES, Difference
from sandlot.providers.docker.workspaces.volumes.archives import PIECE_BYTES, opened

MAX_ENTRIES: Final = 300_000
MAX_NAMES_BYTES: Final = 64 * MIB
_MAX_PATH_BYTES: Final = 4095  # a longer path cannot be used as one
_DIGEST_BYTES: Final = 16


@dataclass(slots=True)
class Listing:
    """``entries``: a digest for each path, of all that counts. ``unnamed``: some paths are too long.
    ``cut``: there are more entries than were read.
    """

    entries: dict[bytes, bytes] = field(default_factory=dict)
    unnamed: bool = False
    cut: bool = False


def list_archive(path: Path) -> Listing:
    """Reads all of it. Call it in a thread."""
    try:
        with (
            opened(path) as content,
            tarfile.open(
                fileobj=content, mode="r|", encoding="utf-8", errors="surrogateescape", bufsize=PIECE_BYTES
            ) as tar,
        ):
            return _list(tar)
    except tarfile.TarError as error:
        raise EngineProblem(f"The snapshot is damaged on the server's disk: {error}.") from error


def _list(tar: tarfile.TarFile) -> Listing:
    found, names_bytes = Listing(), 0
    while (member := tar.next()) is not None:
        tar.members = []  # type: ignore[attr-defined]  # it would keep all of them
        name = _bytes(member.name)
        if name == b".":
            continue
        if len(name) > _MAX_PATH_BYTES:
            found.unnamed = True
            continue
        names_bytes += len(name)
        if len(found.entries) >= MAX_ENTRIES or names_bytes > MAX_NAMES_BYTES:
            found.cut = True
            return found
        if member.islnk():  # another name of a file that came before
            found.entries[name] = found.entries.get(_bytes(member.linkname), b"")
        else:
            found.entries[name] = _digest(member, tar.extractfile(member) if member.isreg() else None)
    return found


def _digest(member: tarfile.TarInfo, content: IO[bytes] | None) -> bytes:
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    digest.update(member.type + member.mode.to_bytes(4, "big") + _bytes(member.linkname) + b"\0")
    while content is not None and (piece := content.read(PIECE_BYTES)):
        digest.update(piece)
    return digest.digest()


def compare(old: Listing, new: Listing) -> Difference:
    cut = old.cut or new.cut
    found = {
        "added": [] if cut else [path for path in new.entries if path not in old.entries],
        "changed": [path for path, digest in new.entries.items() if old.entries.get(path, digest) != digest],
        "removed": [] if cut else [path for path in old.entries if path not in new.entries],
    }
    names = {
        kind: tuple(sorted(map(_text, sorted(paths)[:MAX_DIFFERENCES]))) for kind, paths in found.items()
    }
    too_many = any(len(paths) > MAX_DIFFERENCES for paths in found.values())
    return Difference(**names, truncated=cut or old.unnamed or new.unnamed or too_many)


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def _text(path: bytes) -> str:
    """A path as text, whatever bytes its names have."""
    return path.decode("utf-8", "backslashreplace")
