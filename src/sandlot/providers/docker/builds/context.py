"""Writes what the engine gets for a build: a tar with the Dockerfile and the files of COPY.

The uploaded archives are read as streams, so a huge one fills no memory. Only plain files, folders and
links pass, with names that stay in their folder, and not more than the limits say.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from sandlot.domain.errors import InvalidRequest, TooLarge
from sandlot.domain.templates.build import Step, is_inside
from sandlot.providers.docker.builds.dockerfile import FILES

MAX_FILES: Final = 100_000
MAX_NAME: Final = 4096


@dataclass(slots=True)
class _Room:
    """What is left of a build's limits."""

    files: int
    size: int

    def take(self, member: tarfile.TarInfo) -> None:
        self.files -= 1
        self.size -= member.size
        if self.files < 0:
            raise TooLarge(f"The build has more than {MAX_FILES} files. Leave some out with .dockerignore.")
        if self.size < 0:
            raise TooLarge("The files of the build are larger than the server takes once unpacked.")


def write_context(
    out: IO[bytes], dockerfile: str, steps: tuple[Step, ...], archives: Mapping[str, Path], max_bytes: int
) -> None:
    """``archives``: the uploaded file of each hash."""
    room = _Room(MAX_FILES, max_bytes)
    modes = {step.files: int(step.arguments[3], 8) for step in steps if step.files and _has_mode(step)}
    with tarfile.open(fileobj=out, mode="w") as context:
        text = dockerfile.encode()
        head = tarfile.TarInfo("Dockerfile")
        head.size = len(text)
        context.addfile(head, io.BytesIO(text))
        for files, archive in archives.items():
            try:
                _add(context, archive, f"{FILES}/{files}", room, modes.get(files))
            except (tarfile.TarError, EOFError, OSError, ValueError) as error:
                raise InvalidRequest(
                    f"The uploaded files of a COPY cannot be read: {str(error)[:200]}"
                ) from error


def _has_mode(step: Step) -> bool:
    return len(step.arguments) == 4 and bool(step.arguments[3])


def _add(context: tarfile.TarFile, archive: Path, folder: str, room: _Room, mode: int | None) -> None:
    with archive.open("rb") as opened, tarfile.open(fileobj=opened, mode="r|*") as uploaded:
        for member in uploaded:
            # A tar in stream mode keeps each header that it read, and there may be many.
            uploaded.members = []  # type: ignore[attr-defined]
            if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
                raise InvalidRequest(f"{member.name[:100]!r} is no file, folder or link.")
            if len(member.name) > MAX_NAME or not is_inside(member.name):
                raise InvalidRequest(f"{member.name[:100]!r} is outside the folder of the build.")
            if member.islnk() and not is_inside(member.linkname):
                raise InvalidRequest(f"{member.name[:100]!r} links to a file outside the build.")
            room.take(member)
            context.addfile(
                _moved(member, folder, mode), uploaded.extractfile(member) if member.isreg() else None
            )


def _moved(member: tarfile.TarInfo, folder: str, mode: int | None) -> tarfile.TarInfo:
    """The member in the folder, without what only its machine knows."""
    moved = tarfile.TarInfo(f"{folder}/{member.name}")
    moved.type, moved.size, moved.mtime = member.type, member.size, member.mtime
    moved.mode = member.mode & 0o777 if mode is None or not member.isreg() else mode
    if member.issym():
        moved.linkname = member.linkname
    elif member.islnk():
        moved.linkname = f"{folder}/{member.linkname}"
    return moved
