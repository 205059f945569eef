"""Open connections to one server: a pool per event loop, and whom they trust.

A client may be used from several event loops, one after the other or at once; connections belong to a loop.
Each pool is held by an async generator, because a loop that ends closes its generators: so ``asyncio.run``
leaves no socket behind although the client lives on.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, Final
from weakref import WeakKeyDictionary

import httpx

from sandlot.domain.errors import Unavailable

KEEP_ALIVE_S: Final = 60.0


class Trust:
    """The certificates that are trusted. Read once, and when first needed: it is slow."""

    def __init__(self) -> None:
        self._context: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext:
        if self._context is None:
            self._context = httpx.create_ssl_context()
        return self._context


class Pools:
    def __init__(self, tls: Callable[[], ssl.SSLContext | None], *, through_proxy: bool) -> None:
        self.through_proxy = through_proxy
        self._tls = tls
        self._pools: WeakKeyDictionary[asyncio.AbstractEventLoop, _Pool] = WeakKeyDictionary()
        self._lock = threading.Lock()  # loops of several threads
        self._closed = False

    def present(self) -> httpx.AsyncClient | None:
        pool = self._pools.get(asyncio.get_running_loop())
        return None if pool is None else pool.client

    async def new(self) -> httpx.AsyncClient:
        if self._closed:
            raise Unavailable("this client is closed", retryable=False)
        pool = _Pool(self._tls() or False, self.through_proxy)
        with self._lock:
            for loop in [loop for loop in self._pools if loop.is_closed()]:
                del self._pools[loop]
            self._pools[asyncio.get_running_loop()] = pool
        # No other task of this loop has run since it had no pool: there is one for it.
        await pool.bind()
        return pool.client

    async def close(self) -> None:
        self._closed = True
        with self._lock:
            pools = list(self._pools.items())
            self._pools.clear()
        for loop, pool in pools:
            await on_loop(loop, pool.close)


async def on_loop(loop: asyncio.AbstractEventLoop, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Closes what belongs to a loop; if that loop does not run any more, there is nothing to be done."""
    if loop is asyncio.get_running_loop():
        await close()
    elif loop.is_running():
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(close(), loop))


class _Pool:
    def __init__(self, tls: ssl.SSLContext | bool, through_proxy: bool) -> None:
        self.client = httpx.AsyncClient(
            verify=tls,
            trust_env=through_proxy,
            # As many as there are calls: the server has its own bounds, and says so.
            limits=httpx.Limits(
                max_connections=None, max_keepalive_connections=100, keepalive_expiry=KEEP_ALIVE_S
            ),
        )
        self._held = held(self.client.aclose)

    async def bind(self) -> None:
        await anext(self._held)

    async def close(self) -> None:
        await self._held.aclose()


async def held(close: Callable[[], Coroutine[Any, Any, None]]) -> AsyncGenerator[None, None]:
    """Once it has begun, it closes what it holds when it is closed itself, at the latest by its loop."""
    try:
        yield
    finally:
        await close()
