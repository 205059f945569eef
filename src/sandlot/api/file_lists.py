"""Lists as answers: what a sandbox decides the length of, within the server's budget.

Entries are counted by the memory that they take, by whoever reads them, or here when they are there. Room for
a usual list of so many is reserved before it is read, so that of many lists at once the first come to their
end, and the others wait.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Coroutine, Iterator, Sequence
from typing import Any, Final, TypeVar

from starlette.responses import Response

from sandlot.api.answers import JSON, encoded
from sandlot.api.result_pieces import JSON_PER_BYTE, PIECES_IN_FLIGHT
from sandlot.api.streams import Flow, whole_answer
from sandlot.domain.budget import Account, hold, holding, memory_of
from sandlot.domain.errors import Busy
from sandlot.domain.files import FileEntry, FilePage, Search, TextMatch, Walk

# What is reserved for one entry or match, and for all of them.
ENTRY_BYTES: Final = 4 * 1024
MOST_BYTES: Final = 64 * 1024 * 1024
ROOM_WITHIN_S: Final = 5.0
# Of the memory that entries take: a list with less is written as a whole, any other in pieces of so much.
WHOLE_BYTES: Final = 256 * 1024
PIECE_BYTES: Final = 32 * 1024
# Entries that are measured in one turn: some milliseconds.
MEASURED_AT_ONCE: Final = 500
SEND_S: Final = 60.0

Listed = TypeVar("Listed", Walk, Search, FilePage)
Entries = TypeVar("Entries", bound=Sequence[object])


async def listed_within(found: Coroutine[Any, Any, Listed], limit: int) -> Listed:
    """What was asked for, with ``limit`` entries at most."""
    account = holding.get()
    if account is None:
        return await found
    before = account.held
    try:
        await account.reserve(min(limit * ENTRY_BYTES, MOST_BYTES), within_s=ROOM_WITHIN_S)
    except BaseException:
        found.close()  # nobody will await it
        raise
    with _nothing_executed():
        try:
            listed = await found
        finally:
            account.settle()
        _count(account, before, _entries(listed))
        return listed


async def counted(found: Awaitable[Entries]) -> Entries:
    """A list that is short as a rule, such as that of a session's execs: nothing is reserved for it."""
    account = holding.get()
    if account is None:
        return await found
    before = account.held
    with _nothing_executed():
        entries = await found
        _count(account, before, entries)
        return entries


def _count(account: Account, before: int, entries: Sequence[object]) -> None:
    """Who read them from a sandbox has counted them, message by message: again, it would take others' time.
    Others are counted at once, because nothing stands for them yet.
    """
    if account.held <= before:
        account.at_least(before + memory_of(entries))


@contextlib.contextmanager
def _nothing_executed() -> Iterator[None]:
    try:
        yield
    except Busy as error:
        error.may_have_executed = False
        raise


async def list_answer(found: Walk | Search | FilePage) -> Response:
    if isinstance(found, FilePage):
        return await entries_answer("entries", found.entries, {"next": found.next})
    name = "matches" if isinstance(found, Search) else "entries"
    return await entries_answer(name, _entries(found), {"truncated": found.truncated})


async def entries_answer(
    name: str, entries: Sequence[object], rest: dict[str, object] | None = None
) -> Response:
    """An object with these members. A long one goes piece by piece: its JSON is never there as a whole, and
    others have their turns between.
    """
    rest = rest or {}
    sizes = await _sizes(entries)
    if sum(sizes) <= WHOLE_BYTES:
        return whole_answer(encoded({name: entries, **rest}), JSON, within_s=SEND_S)
    parts = _parts(sizes)
    hold(PIECES_IN_FLIGHT * JSON_PER_BYTE * max(sum(sizes[part]) for part in parts))

    async def pieces() -> AsyncIterator[bytes]:
        yield b'{"%s":' % name.encode()
        for number, part in enumerate(parts):
            yield (b"," if number else b"[") + encoded(entries[part])[1:-1]
            await asyncio.sleep(0)
        yield b"]" + b"".join(b',"%s":%s' % (key.encode(), encoded(rest[key])) for key in rest) + b"}"

    return Flow(pieces(), again=pieces, media_type=JSON, within_s=SEND_S)


async def _sizes(entries: Sequence[object]) -> list[int]:
    sizes: list[int] = []
    for begin in range(0, len(entries), MEASURED_AT_ONCE):
        if begin:
            await asyncio.sleep(0)
        sizes += [memory_of((entry,)) for entry in entries[begin : begin + MEASURED_AT_ONCE]]
    return sizes


def _parts(sizes: Sequence[int]) -> list[slice]:
    """Each with at least one entry, and ends with the one that fills it."""
    parts = []
    begin = size = 0
    for number, more in enumerate(sizes, 1):
        size += more
        if size >= PIECE_BYTES or number == len(sizes):
            parts.append(slice(begin, number))
            begin, size = number, 0
    return parts


def _entries(found: Walk | Search | FilePage) -> Sequence[FileEntry | TextMatch]:
    return found.matches if isinstance(found, Search) else found.entries
