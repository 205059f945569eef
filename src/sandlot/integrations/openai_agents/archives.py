"""Workspace archives: tar files that any of the framework's sandboxes can restore."""

from __future__ import annotations

import asyncio
import io
import tarfile
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import IO, Final, cast

from agents.sandbox.util.tar_utils import should_skip_tar_member, strip_tar_member_prefix, validate_tarfile

CHUNK_BYTES: Final = 1024 * 1024
ARCHIVE_ROOT: Final = "workspace"  # the framework strips this prefix from the names


def portable_archive(archive: IO[bytes], root: Path, skip_paths: set[Path]) -> io.IOBase:
    """A copy without the skipped paths, with names and links as the framework expects them."""
    with tempfile.TemporaryFile() as filtered:
        archive.seek(0)
        with (
            tarfile.open(fileobj=archive, mode="r:") as source,
            tarfile.open(fileobj=filtered, mode="w") as target,
        ):
            for member in source:
                if should_skip_tar_member(member.name, skip_rel_paths=skip_paths, root_name=None):
                    continue
                content = source.extractfile(member) if member.isreg() else None
                member.name = f"{ARCHIVE_ROOT}/{member.name}"
                cast(dict[str, str], member.pax_headers).pop("path", None)
                target.addfile(member, content)
        filtered.seek(0)
        return strip_tar_member_prefix(
            cast(io.IOBase, filtered), prefix=ARCHIVE_ROOT, relativize_symlinks_under=root
        )


def copy_validated(data: io.IOBase, archive: IO[bytes]) -> None:
    """Copy a tar file into ``archive`` and raise an error if it has unsafe members."""
    while chunk := data.read(CHUNK_BYTES):
        archive.write(chunk)
    archive.seek(0)
    with tarfile.open(fileobj=archive, mode="r:*") as tar:
        validate_tarfile(tar, allow_external_symlink_targets=False)
    archive.seek(0)


def read_chunks(stream: io.IOBase) -> Iterator[bytes]:
    while chunk := stream.read(CHUNK_BYTES):
        yield chunk


async def read_in_thread(file: IO[bytes]) -> AsyncIterator[bytes]:
    while chunk := await asyncio.to_thread(file.read, CHUNK_BYTES):
        yield chunk
