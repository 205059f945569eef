"""A workspace as a tar that any of the framework's sandboxes can be filled from."""

from __future__ import annotations

import asyncio
import io
import tarfile
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import IO, Final, cast

from agents.sandbox.util.tar_utils import should_skip_tar_member, strip_tar_member_prefix, validate_tarfile

PIECE_BYTES: Final = 1024 * 1024
ARCHIVE_ROOT: Final = "workspace"  # what the framework takes off the names again


def portable(whole: IO[bytes], root: Path, skipped: set[Path]) -> io.IOBase:
    """Without what is not to be kept, and with names and links as the framework's sandboxes take them."""
    with tempfile.TemporaryFile() as kept:
        whole.seek(0)
        with tarfile.open(fileobj=whole, mode="r:") as source, tarfile.open(fileobj=kept, mode="w") as target:
            for member in source:
                if should_skip_tar_member(member.name, skip_rel_paths=skipped, root_name=None):
                    continue
                content = source.extractfile(member) if member.isreg() else None
                member.name = f"{ARCHIVE_ROOT}/{member.name}"
                cast(dict[str, str], member.pax_headers).pop("path", None)
                target.addfile(member, content)
        kept.seek(0)
        return strip_tar_member_prefix(
            cast(io.IOBase, kept), prefix=ARCHIVE_ROOT, relativize_symlinks_under=root
        )


def checked(data: io.IOBase, archive: IO[bytes]) -> None:
    while piece := data.read(PIECE_BYTES):
        archive.write(piece)
    archive.seek(0)
    with tarfile.open(fileobj=archive, mode="r:*") as tar:
        validate_tarfile(tar, allow_external_symlink_targets=False)
    archive.seek(0)


def pieces(stream: io.IOBase) -> Iterator[bytes]:
    while piece := stream.read(PIECE_BYTES):
        yield piece


async def read_off_loop(file: IO[bytes]) -> AsyncIterator[bytes]:
    while piece := await asyncio.to_thread(file.read, PIECE_BYTES):
        yield piece
