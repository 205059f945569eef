"""Unpacks a tar from a sandbox. Nothing may land outside the target folder or point outside it.

This does not use ``tarfile``'s own extraction: in several releases that we support, links could
lead its data filter outside. Here the order makes it simple. Files are written while no link of the
archive exists yet, and existing links are not followed. Links come last, and only those that end
inside.
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

MAX_HOPS: Final = 40  # links that lead to links; the kernel's limit
MAX_HEADER_BYTES: Final = 1024 * 1024  # tarfile reads a whole header at once
MAX_NAME_BYTES: Final = 4095  # for a path or a link's target; the kernel's limit
MAX_STEPS: Final = 10_000  # path steps to resolve one link
MAX_TOTAL_STEPS: Final = 1_000_000  # for all links together; the rest is skipped
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Downloaded:
    """What a download wrote.

    ``skipped``: the names of entries that were left out: links that lead out of the folder, hard
    links and special files.
    """

    files: int
    bytes: int
    skipped: tuple[str, ...] = ()


def unpack(archive: IO[bytes], folder: Path, *, max_bytes: int, max_files: int) -> Downloaded:
    """Unpack a tar into a folder. Raises ``FileProblem`` if it exceeds a limit or is broken."""
    folder.mkdir(parents=True, exist_ok=True)
    files = size = entries = 0
    links: dict[PurePosixPath, str] = {}
    skipped: list[str] = []
    try:
        with tarfile.open(fileobj=_BoundedReads(archive), mode="r:") as tar:
            for member in tar:
                name = _relative_path(member.name)
                if member.size < 0:
                    raise tarfile.ReadError("negative size")
                entries += 1
                size += member.size if member.isreg() else 0
                if entries > max_files or size > max_bytes:
                    raise FileProblem(
                        f"The archive has more than {max_files} entries or {max_bytes} bytes.",
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
                # Otherwise tarfile keeps every member in memory.
                tar.members = []  # type: ignore[attr-defined]
    # ValueError and OverflowError: numbers that tarfile does not expect.
    except (tarfile.TarError, ValueError, OverflowError) as error:
        raise FileProblem(f"The archive is broken: {error}", reason="invalid_path", path="") from error
    resolver = _LinkResolver(folder, links)
    for name in [name for name in links if not resolver.ends_inside(name)]:
        skipped.append(str(name))
        del links[name]
    for name, target in links.items():
        _make_link(folder, name, target)
    return Downloaded(files + len(links), size, tuple(skipped))


class _BoundedReads(io.BufferedIOBase):
    """A file that refuses to read more than a header's maximum size at once."""

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


def _relative_path(name: str) -> PurePosixPath:
    """Return an entry's path relative to the folder; a path that leads outside raises an error.

    The folder itself is ``.``.
    """
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name or _too_long(name):
        raise FileProblem(
            f"The archive has a name that leads outside the target folder: {name!r:.200}.",
            reason="invalid_path",
            path=name,
        )
    return path


def _too_long(name: str) -> bool:
    return len(os.fsencode(name)) > MAX_NAME_BYTES


def _make_folder(folder: Path, name: PurePosixPath) -> Path:
    """Create the folder and those above it. None of them may be a link."""
    path = folder
    for part in name.parts:
        path /= part
        try:
            path.mkdir()
        except FileExistsError:
            if path.is_symlink() or not path.is_dir():
                raise FileProblem(
                    f"{path} already exists on this machine and is not a folder.",
                    reason="exists",
                    path=str(path),
                ) from None
    return path


def _make_file(folder: Path, name: PurePosixPath, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
    if not name.parts:
        raise FileProblem("The archive has a file without a name.", reason="invalid_path", path=member.name)
    path = _make_folder(folder, name.parent) / name.name
    _remove_existing(path)
    content = tar.extractfile(member)
    assert content is not None
    with content, os.fdopen(os.open(path, _NEW_FILE, 0o600 | (member.mode & 0o777)), "wb") as file:
        shutil.copyfileobj(content, file)


def _make_link(folder: Path, name: PurePosixPath, target: str) -> None:
    path = _make_folder(folder, name.parent) / name.name
    _remove_existing(path)
    path.symlink_to(target)


def _remove_existing(path: Path) -> None:
    """Remove an existing file or link. An existing folder raises an error."""
    if path.is_dir() and not path.is_symlink():
        raise FileProblem(
            f"{path} is a folder on this machine. Choose another path for the copy.",
            reason="is_a_directory",
            path=str(path),
        )
    path.unlink(missing_ok=True)


class _LinkResolver:
    """Follows links, also through other links of the archive, and never above the folder."""

    def __init__(self, folder: Path, links: Mapping[PurePosixPath, str]) -> None:
        self._folder = folder
        self._links = links
        self._steps_left = MAX_TOTAL_STEPS

    def ends_inside(self, name: PurePosixPath) -> bool:
        """Whether a link ends inside the folder.

        Checking each link once is enough: dropping a link can only break paths that led through it.
        """
        if not name.parts or not self._links[name]:
            return False
        position = name.parent
        steps = list(reversed(_steps(self._links[name])))
        hops = steps_taken = 0
        while steps:
            steps_taken += 1
            self._steps_left -= 1
            if steps_taken > MAX_STEPS or self._steps_left < 0:
                return False
            step = steps.pop()
            if step == "/":
                return False
            if step == "..":
                if not position.parts:
                    return False
                position = position.parent
                continue
            position = position / step
            if position in self._links:
                hops += 1
                if hops > MAX_HOPS:
                    return False
                steps += reversed(_steps(self._links[position]))
                position = position.parent
            elif self._is_link(position):
                return False  # a link that existed before; we cannot tell where it ends
        return True

    def _is_link(self, position: PurePosixPath) -> bool:
        try:
            return (self._folder / position).is_symlink()
        except OSError:
            return True  # the path is too long to check, so we cannot tell either


def _steps(target: str) -> list[str]:
    steps = [step for step in target.split("/") if step not in {"", "."}]
    return ["/", *steps] if target.startswith("/") else steps
