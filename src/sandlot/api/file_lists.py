"""Lists of files as answers: what a sandbox decides the length of, within the server's budget.

Room for as much as may come is taken before it is read, and what was too much goes back when it is known.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Final, TypeVar

from starlette.responses import Response

from sandlot.api.answers import answer, encoded
from sandlot.api.streams import Flow
from sandlot.domain.budget import holding
from sandlot.domain.files import FileEntry, FilePage, Search, TextMatch, Walk

# What one entry or match may take, with a path as long as a path can be; and what an agent sends at most.
ENTRY_BYTES: Final = 4 * 1024
MOST_BYTES: Final = 64 * 1024 * 1024
# What one really takes beside its texts.
ENTRY_OVERHEAD: Final = 400
ROOM_WITHIN_S: Final = 5.0
# Entries that are written as one piece; fewer are sent at once.
PIECE_ENTRIES: Final = 500
SEND_S: Final = 60.0

Found = TypeVar("Found", Walk, Search, FilePage)


async def listed_within(found: Awaitable[Found], limit: int) -> Found:
    """What was asked for, with ``limit`` entries at most."""
    account = holding.get()
    size = min(limit * ENTRY_BYTES, MOST_BYTES)
    if account is not None:
        try:
            await account.room_for(size, within_s=ROOM_WITHIN_S)
        except BaseException:
            close = getattr(found, "close", None)  # a coroutine that nobody will await
            if close is not None:
                close()
            raise
    listed = await found
    if account is not None:
        account.shrink(max(0, size - _size(listed)))
    return listed


def list_answer(found: Walk | Search | FilePage) -> Response:
    """A long one piece by piece: its JSON is never there as a whole, and others have their turns between."""
    name, entries = _entries(found)
    if len(entries) <= PIECE_ENTRIES:
        return answer(found)
    rest = found.next if isinstance(found, FilePage) else found.truncated
    last = "next" if isinstance(found, FilePage) else "truncated"

    async def pieces() -> AsyncIterator[bytes]:
        yield b'{"%s":[' % name.encode()
        for begin in range(0, len(entries), PIECE_ENTRIES):
            comma = b"," if begin else b""
            yield comma + encoded(entries[begin : begin + PIECE_ENTRIES])[1:-1]
            await asyncio.sleep(0)
        yield b'],"%s":%s}' % (last.encode(), encoded(rest))

    return Flow(pieces(), media_type="application/json", within_s=SEND_S)


def _entries(found: Walk | Search | FilePage) -> tuple[str, Sequence[FileEntry | TextMatch]]:
    return ("matches", found.matches) if isinstance(found, Search) else ("entries", found.entries)


def _size(found: Walk | Search | FilePage) -> int:
    _, entries = _entries(found)
    return sum(ENTRY_OVERHEAD + len(one.path) + len(getattr(one, "text", "")) for one in entries)
