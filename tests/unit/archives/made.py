"""Archives made and read in tests."""

from __future__ import annotations

import io
import subprocess
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

from sandlot.providers.archives.compression import compressed
from sandlot.providers.archives.limits import Limits
from sandlot.providers.archives.packing import pack
from sandlot.providers.archives.unpacking import unpack
from sandlot.testing.workspace_suite.harness import DESCRIBE


def described(folder: Path) -> bytes:
    return subprocess.run(["bash", "-c", DESCRIBE], cwd=folder, check=True, capture_output=True).stdout


def archive_of(folder: Path) -> bytes:
    return b"".join(compressed(pack(folder)))


def pieces_of(content: bytes, size: int = 70_000) -> Callable[[], bytes]:
    pieces = iter([content[place : place + size] for place in range(0, len(content), size)])
    return lambda: next(pieces, b"")


def unpack_into(folder: Path, content: bytes, limits: Limits | None = None) -> None:
    unpack(pieces_of(content), folder, limits or Limits())


def member(
    name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int | None = None
) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.mode = kind, link, 0o644
    made.size = (1 if kind == tarfile.REGTYPE else 0) if size is None else size
    return made


def tar_of(members: Sequence[tarfile.TarInfo]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for one in members:
            tar.addfile(one, io.BytesIO(b"x" * one.size) if one.isreg() else None)
    return content.getvalue()


def zstd(content: bytes) -> bytes:
    return b"".join(compressed([content]))
