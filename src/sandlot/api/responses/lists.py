"""Lists as responses. A sandbox decides how long they are, so they count against the server's
budget.

Entries are counted by the memory that they take: by the code that reads them, or here once they are
read. Memory for a typical list of the requested length is reserved before reading. So when many
lists are read at once, the first ones finish and the others wait.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Coroutine, Iterator, Sequence
from typing import Any, Final, TypeVar

from starlette.responses import Response

from sandlot.api.responses.json import JSON, encode_json
from sandlot.api.responses.large_results import MAX_JSON_PER_BYTE, PIECES_IN_FLIGHT
from sandlot.api.responses.streams import StreamedResponse, buffered_response
from sandlot.domain.capacity.budget import Account, current_account, hold, memory_of
from sandlot.domain.errors import Busy
from sandlot.domain.files import FileEntry, FilePage, Search, TextMatch, Walk

# Reserved for one entry or match, and at most for the whole list.
RESERVED_BYTES_PER_ENTRY: Final = 4 * 1024
MAX_RESERVED_BYTES: Final = 64 * 1024 * 1024
RESERVE_TIMEOUT_S: Final = 5.0
# In bytes of memory that entries take: a list up to the first size is written at once, any other in
# pieces of the second size.
MAX_UNSPLIT_BYTES: Final = 256 * 1024
PIECE_BYTES: Final = 32 * 1024
# Entries measured before other requests get a turn; takes a few milliseconds.
MEASURE_BATCH: Final = 500
SEND_TIMEOUT_S: Final = 60.0

Listing = TypeVar("Listing", Walk, Search, FilePage)
Entries = TypeVar("Entries", bound=Sequence[object])


async def list_within_budget(listing: Coroutine[Any, Any, Listing], limit: int) -> Listing:
    """Await a listing of at most ``limit`` entries, and reserve memory for it beforehand."""
    account = current_account.get()
    if account is None:
        return await listing
    held_before = account.held
    try:
        await account.reserve(
            min(limit * RESERVED_BYTES_PER_ENTRY, MAX_RESERVED_BYTES), within_s=RESERVE_TIMEOUT_S
        )
    except BaseException:
        listing.close()  # it will never be awaited
        raise
    with _busy_as_not_executed():
        try:
            listed = await listing
        finally:
            account.release_reserved()
        _count(account, held_before, _entries(listed))
        return listed


async def count_against_budget(listing: Awaitable[Entries]) -> Entries:
    """Await a usually short list, such as a session's execs, with nothing reserved for it."""
    account = current_account.get()
    if account is None:
        return await listing
    held_before = account.held
    with _busy_as_not_executed():
        entries = await listing
        _count(account, held_before, entries)
        return entries


def _count(account: Account, held_before: int, entries: Sequence[object]) -> None:
    """Count the entries, unless the code that read them has done so.

    Entries from a sandbox were counted message by message; counting them again would delay other
    requests. Any others are counted at once, because nothing accounts for them yet.
    """
    if account.held <= held_before:
        account.hold_at_least(held_before + memory_of(entries))


@contextlib.contextmanager
def _busy_as_not_executed() -> Iterator[None]:
    try:
        yield
    except Busy as error:
        error.may_have_executed = False
        raise


async def list_response(listed: Walk | Search | FilePage) -> Response:
    if isinstance(listed, FilePage):
        return await entries_response("entries", listed.entries, {"next": listed.next})
    name = "matches" if isinstance(listed, Search) else "entries"
    return await entries_response(name, _entries(listed), {"truncated": listed.truncated})


async def entries_response(
    name: str, entries: Sequence[object], rest: dict[str, object] | None = None
) -> Response:
    """An object with the entries under ``name``, plus ``rest``.

    A long list goes out in pieces: its whole JSON is never in memory, and other requests get a turn
    in between.
    """
    rest = rest or {}
    sizes = await _sizes(entries)
    if sum(sizes) <= MAX_UNSPLIT_BYTES:
        return buffered_response(encode_json({name: entries, **rest}), JSON, timeout_s=SEND_TIMEOUT_S)
    parts = _parts(sizes)
    hold(PIECES_IN_FLIGHT * MAX_JSON_PER_BYTE * max(sum(sizes[part]) for part in parts))

    async def pieces() -> AsyncIterator[bytes]:
        yield b'{"%s":' % name.encode()
        for number, part in enumerate(parts):
            yield (b"," if number else b"[") + encode_json(entries[part])[1:-1]
            await asyncio.sleep(0)
        yield b"]" + b"".join(b',"%s":%s' % (key.encode(), encode_json(rest[key])) for key in rest) + b"}"

    return StreamedResponse(pieces(), replay=pieces, media_type=JSON, timeout_s=SEND_TIMEOUT_S)


async def _sizes(entries: Sequence[object]) -> list[int]:
    sizes: list[int] = []
    for begin in range(0, len(entries), MEASURE_BATCH):
        if begin:
            await asyncio.sleep(0)
        sizes += [memory_of((entry,)) for entry in entries[begin : begin + MEASURE_BATCH]]
    return sizes


def _parts(sizes: Sequence[int]) -> list[slice]:
    """Slices of the list. Each has at least one entry and ends with the entry that fills it."""
    parts = []
    begin = size = 0
    for number, more in enumerate(sizes, 1):
        size += more
        if size >= PIECE_BYTES or number == len(sizes):
            parts.append(slice(begin, number))
            begin, size = number, 0
    return parts


def _entries(listed: Walk | Search | FilePage) -> Sequence[FileEntry | TextMatch]:
    return listed.matches if isinstance(listed, Search) else listed.entries
