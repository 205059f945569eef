"""What an archive may have, and the errors for one that is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sandlot.domain.errors import InvalidRequest, TooLarge
from sandlot.domain.text.printable import escape_unprintable
from sandlot.domain.workspaces.objects.limits import KIB, MIB

MAX_ENTRIES: Final = 1_000_000
# Of a whole path: what the kernel, and so every tar, takes.
MAX_PATH_BYTES: Final = 4095
# All headers of one entry: its path, its attributes, and where a sparse file has data.
MAX_HEADER_BYTES: Final = 1 * MIB
# More parts of a sparse file than this do not fit in its header. Then short holes are written as zeros.
MAX_PARTS: Final = 16 * KIB
# What is kept in memory of folders and hard links until the end. Enough for a million of them.
MAX_KEPT_BYTES: Final = 128 * MIB
# One file without its holes: more than a workspace has, and some minutes to read.
MAX_FILE_DATA_BYTES: Final = 1024 * 1024 * MIB
# Seconds to unpack, however slow the sender is.
MAX_UNPACK_S: Final = 3600.0
# What an entry costs on the disk beside its data, about.
ENTRY_BYTES: Final = 256


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Limits:
    """``max_bytes``: how much data an archive may unpack to; holes are free. ``check``: called again and
    again while it is unpacked; raises to stop it.
    """

    max_bytes: int | None = None
    max_entries: int = MAX_ENTRIES
    max_s: float = MAX_UNPACK_S
    check: Callable[[], None] = _nothing


def shown(path: bytes) -> str:
    """A path of an archive, safe to show and of bounded length."""
    text = escape_unprintable(path.decode("utf-8", "backslashreplace"))
    return f'"{text}"' if len(text) <= 200 else f'"{text[:200]}…"'


def refused(what: str) -> InvalidRequest:
    return InvalidRequest(f"The archive cannot be imported: {what}. Nothing of it was kept.")


def damaged(what: str) -> InvalidRequest:
    return InvalidRequest(
        f"The archive is damaged: {what}. Nothing of it was kept. Check the file, then send it again."
    )


def too_large(what: str) -> TooLarge:
    return TooLarge(f"The archive is too large: {what}. Nothing of it was kept.")
