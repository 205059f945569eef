"""Archives between the event loop, which has their bytes, and threads, which have the files."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from sandlot.providers.archives.compression import compressed
from sandlot.providers.archives.limits import Limits
from sandlot.providers.archives.packing import pack
from sandlot.providers.archives.unpacking import unpack

T = TypeVar("T")


async def packed(folder: Path) -> AsyncGenerator[bytes, None]:
    """A folder's files as an archive. Nothing of the folder may change meanwhile."""
    pieces = compressed(pack(folder))
    try:
        while (piece := await _to_its_end(asyncio.to_thread(next, pieces, None))) is not None:
            yield piece
    finally:
        await _to_its_end(asyncio.to_thread(pieces.close))


async def unpacked(archive: AsyncIterable[bytes], folder: Path, limits: Limits) -> None:
    """Unpack an archive while it arrives. If it fails, the folder is left half full.

    In a thread of its own, because it waits for the sender.
    """
    pulled = _Pulled(archive)
    thread = ThreadPoolExecutor(1, "unpack")
    work = asyncio.get_running_loop().run_in_executor(thread, unpack, pulled.read, folder, limits)
    try:
        await asyncio.shield(work)
    except asyncio.CancelledError:
        pulled.stop()
        await _ended(work)
        raise
    finally:
        thread.shutdown(wait=False)


async def _to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """A thread cannot be cancelled: a caller that is waits for it."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await _ended(task)
        raise


async def _ended(work: asyncio.Future[Any]) -> None:
    while not work.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([work])
    if not work.cancelled():
        work.exception()  # the caller gets the cancellation instead


class _Pulled:
    """Hands the pieces of an async stream to a thread, one when it asks for one."""

    def __init__(self, pieces: AsyncIterable[bytes]) -> None:
        self._pieces: AsyncIterator[bytes] = aiter(pieces)
        self._loop = asyncio.get_running_loop()
        self._asked: Future[bytes | None] | None = None
        self._stopped = False

    def read(self) -> bytes:
        """``b""`` at the end."""
        while True:
            self._asked = asyncio.run_coroutine_threadsafe(self._next(), self._loop)
            piece = self._asked.result()
            if piece is None:
                return b""
            if piece:
                return piece

    def stop(self) -> None:
        self._stopped = True
        if self._asked is not None:
            self._asked.cancel()

    async def _next(self) -> bytes | None:
        if self._stopped:
            raise asyncio.CancelledError
        return await anext(self._pieces, None)
