"""Unpacking a tar that came out of a sandbox: nothing of it may land outside the folder, or point outside.

Not ``tarfile``'s own extraction: its data filter could be led outside by links in several releases that we
run on. Here the order of things makes it simple: files are written while no link of the archive exists, no
link that was there before is followed, and links come last, only those that end inside.
"""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Final

from sandlot.domain.errors import FileProblem

MAX_HOPS: Final = 40  # links that lead to links, as the kernel allows
MAX_HEADER_BYTES: Final = 1024 * 1024  # tarfile reads a header whole, however long it says it is
MAX_NAME_BYTES: Final = 4095  # of a path or a link's target, as the kernel allows
MAX_STEPS: Final = 10_000  # of the way from one link
MAX_STEPS_IN_ALL: Final = 1_000_000  # of all links of an archive; those that are left are not made
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Downloaded:
    """``skipped``: links that lead out of the folder, hard links and special files, by name."""

    files: int
    bytes: int
    skipped: tuple[str, ...] = ()


def unpack(archive: IO[bytes], folder: Path, *, max_bytes: int, max_files: int) -> Downloaded:
    folder.mkdir(parents=True, exist_ok=True)
    files = size = entries = 0
    links: dict[PurePosixPath, str] = {}
    skipped: list[str] = []
    try:
        with tarfile.open(fileobj=_ShortReads(archive), mode="r:") as tar:
            for member in tar:
                name = _inside(member.name)
                if member.size < 0:
                    raise tarfile.ReadError("a size below zero")
                entries += 1
                size += member.size if member.isreg() else 0
                if entries > max_files or size > max_bytes:
                    raise FileProblem(
                        f"the archive has more than {max_files} entries or {max_bytes} bytes",
                        reason="too_large",
                        path=member.name,
                    )
                if member.isdir():
                    _make_folder(folder, name)
                elif member.issym() and not _too_long(member.linkname):
                    links[name] = member.linkname
                elif member.isreg() and not member.issparse():
                    _make_file(folder, name, tar, member)
                    files += 1
                else:
                    skipped.append(member.name)
                tar.members = []  # type: ignore[attr-defined]  # it would keep them all
    except (tarfile.TarError, ValueError, OverflowError) as error:  # numbers that tarfile does not expect
        raise FileProblem(f"the archive is broken: {error}", reason="invalid_path", path="") from error
    walk = _Walk(folder, links)
    for name in [name for name in links if not walk.ends_inside(name)]:
        skipped.append(str(name))
        del links[name]
    for name, target in links.items():
        _make_link(folder, name, target)
    return Downloaded(files + len(links), size, tuple(skipped))


class _ShortReads(io.BufferedIOBase):
    """A file of which no more than a header's bound is read at once."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or not 0 <= size <= MAX_HEADER_BYTES:
            raise tarfile.ReadError(f"a header of {size} bytes")
        return self._file.read(size)

    def seek(self, offset: int, whence: int = 0, /) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()


def _inside(name: str) -> PurePosixPath:
    """Relative to the folder, without a step up. The folder itself is ``.``."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name or _too_long(name):
        raise FileProblem(
            f"the archive has a name that leads outside: {name!r:.200}", reason="invalid_path", path=name
        )
    return path


def _too_long(name: str) -> bool:
    return len(os.fsencode(name)) > MAX_NAME_BYTES


def _make_folder(folder: Path, name: PurePosixPath) -> Path:
    """The folder and those above it, none of them a link."""
    place = folder
    for part in name.parts:
        place /= part
        try:
            place.mkdir()
        except FileExistsError:
            if place.is_symlink() or not place.is_dir():
                raise FileProblem(
                    f"{place} is here already and is not a folder", reason="exists", path=str(place)
                ) from None
    return place


def _make_file(folder: Path, name: PurePosixPath, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
    if not name.parts:
        raise FileProblem("the archive has a file without a name", reason="invalid_path", path=member.name)
    place = _make_folder(folder, name.parent) / name.name
    _make_room(place)
    content = tar.extractfile(member)
    assert content is not None
    with content, os.fdopen(os.open(place, _NEW_FILE, 0o600 | (member.mode & 0o777)), "wb") as file:
        shutil.copyfileobj(content, file)


def _make_link(folder: Path, name: PurePosixPath, target: str) -> None:
    place = _make_folder(folder, name.parent) / name.name
    _make_room(place)
    place.symlink_to(target)


def _make_room(place: Path) -> None:
    """A file or link that was here before gives way; a folder does not."""
    if place.is_dir() and not place.is_symlink():
        raise FileProblem(f"{place} is a folder here", reason="is_a_directory", path=str(place))
    place.unlink(missing_ok=True)


class _Walk:
    """Walks the ways that links lead, through the archive's other links, and never above the folder."""

    def __init__(self, folder: Path, links: Mapping[PurePosixPath, str]) -> None:
        self._folder = folder
        self._links = links
        self._steps_left = MAX_STEPS_IN_ALL

    def ends_inside(self, name: PurePosixPath) -> bool:
        """Taking a link away only ends ways that led through it, so one verdict each is enough."""
        if not name.parts or not self._links[name]:
            return False
        at = name.parent
        steps = list(reversed(_steps(self._links[name])))
        hops = walked = 0
        while steps:
            walked += 1
            self._steps_left -= 1
            if walked > MAX_STEPS or self._steps_left < 0:
                return False
            step = steps.pop()
            if step == "/":
                return False
            if step == "..":
                if not at.parts:
                    return False
                at = at.parent
                continue
            at = at / step
            if at in self._links:
                hops += 1
                if hops > MAX_HOPS:
                    return False
                steps += reversed(_steps(self._links[at]))
                at = at.parent
            elif self._is_link(at):
                return False  # someone's own link, whose end is not ours to judge
        return True

    def _is_link(self, at: PurePosixPath) -> bool:
        try:
            return (self._folder / at).is_symlink()
        except OSError:
            return True  # too long a way to look: not ours to judge either


def _steps(target: str) -> list[str]:
    steps = [step for step in target.split("/") if step not in {"", "."}]
    return ["/", *steps] if target.startswith("/") else steps
