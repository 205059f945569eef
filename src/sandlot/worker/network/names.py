"""Names, resolved once for each connection, so that the address that was checked is the one connected to.

A name that resolves to another address a moment later gains nothing: there is no second question.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

# Addresses of one name that are tried.
MAX_ADDRESSES: Final = 4

T = TypeVar("T")
_Entry = tuple[Any, Any, int, str, tuple[Any, ...]]  # as getaddrinfo returns it


class Names:
    """Resolves names as the system does, on threads of its own: a name may take long, and others wait for
    the loop's shared threads."""

    def __init__(self, threads: int, purpose: str) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=f"sandlot-{purpose}")

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def resolve(
        self,
        name: str,
        port: int,
        check: Callable[[str], None],
        slots: asyncio.Semaphore | None = None,
    ) -> list[str]:
        """All addresses of a name, after each has passed ``check``, which raises for one that may not be
        reached: one such address among good ones is a trick. Raises ``OSError`` if there is no address.

        ``slots``: bounds the threads that one asker keeps busy.
        """
        try:
            found = await self._ask(name, port, slots)
        except UnicodeError as error:
            raise OSError("the name is not valid") from error
        addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
        for address in addresses:
            check(address)
        return addresses

    async def _ask(self, name: str, port: int, slots: asyncio.Semaphore | None) -> list[_Entry]:
        loop = asyncio.get_running_loop()
        if slots is not None:
            await slots.acquire()
        asking = self._threads.submit(socket.getaddrinfo, name, port, type=socket.SOCK_STREAM)
        if slots is not None:
            # Not when the caller gives up: the thread goes on until the system gives up too.
            asking.add_done_callback(lambda _: _release(loop, slots))
        return await asyncio.wrap_future(asking)


def _release(loop: asyncio.AbstractEventLoop, slots: asyncio.Semaphore) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits for a slot
        loop.call_soon_threadsafe(slots.release)


async def connect_to_one(
    addresses: Sequence[str],
    connect: Callable[[str], Awaitable[T]],
    failures: tuple[type[Exception], ...] = (OSError,),
) -> T:
    """Try the addresses in turn. ``failures``: what ``connect`` raises for one that cannot be reached."""
    problem: Exception = OSError("the name has no address")
    for address in addresses[:MAX_ADDRESSES]:
        try:
            return await connect(address)
        except failures as error:
            problem = error
    raise problem


def reason_of(error: OSError) -> str:
    """What happened, without the address: who chose the name need not know how it resolves here."""
    if isinstance(error, ssl.SSLError):
        return f"TLS failed ({getattr(error, 'verify_message', None) or error.reason or 'broken off'})"
    if not error.errno:
        return "no connection"
    # Below 0 are the errors of name resolution. The texts of others may name the address.
    return os.strerror(error.errno) if error.errno > 0 else str(error.strerror)
