"""Open connections to one server: one pool per event loop, and the trusted certificates.

A client may be used from several event loops, one after the other or at once, and connections
belong to a loop. An async generator holds each pool, because a loop closes its generators when it
ends. So ``asyncio.run`` leaves no open socket, although the client continues to exist.
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
    """The trusted certificates. They are loaded once, on first use, because that is slow."""

    def __init__(self) -> None:
        self._context: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext:
        if self._context is None:
            self._context = httpx.create_ssl_context()
        return self._context


class Pools:
    """The connection pools to one server, one for each event loop."""

    def __init__(self, tls: Callable[[], ssl.SSLContext | None], *, through_proxy: bool) -> None:
        self.through_proxy = through_proxy
        self._tls = tls
        self._pools: WeakKeyDictionary[asyncio.AbstractEventLoop, _Pool] = WeakKeyDictionary()
        self._lock = threading.Lock()  # for loops in several threads
        self._closed = False

    def current(self) -> httpx.AsyncClient | None:
        """Return the running loop's pool, if it has one."""
        pool = self._pools.get(asyncio.get_running_loop())
        return None if pool is None else pool.client

    async def create(self) -> httpx.AsyncClient:
        """Create the running loop's pool."""
        if self._closed:
            raise Unavailable("This client is closed. Create a new one.", retryable=False)
        pool = _Pool(self._tls() or False, self.through_proxy)
        with self._lock:
            for loop in [loop for loop in self._pools if loop.is_closed()]:
                del self._pools[loop]
            self._pools[asyncio.get_running_loop()] = pool
        # No other task of this loop ran since ``current`` found no pool, so there is only this one.
        await pool.attach_to_loop()
        return pool.client

    async def close(self) -> None:
        self._closed = True
        with self._lock:
            pools = list(self._pools.items())
            self._pools.clear()
        for loop, pool in pools:
            await run_on_loop(loop, pool.close)


async def run_on_loop(
    loop: asyncio.AbstractEventLoop, close: Callable[[], Coroutine[Any, Any, None]]
) -> None:
    """Run ``close`` on the loop that owns the resource; do nothing if that loop no longer runs."""
    if loop is asyncio.get_running_loop():
        await close()
    elif loop.is_running():
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(close(), loop))


class _Pool:
    def __init__(self, tls: ssl.SSLContext | bool, through_proxy: bool) -> None:
        self.client = httpx.AsyncClient(
            verify=tls,
            trust_env=through_proxy,
            # One connection per concurrent call: the server has its own limits and reports them.
            limits=httpx.Limits(
                max_connections=None, max_keepalive_connections=100, keepalive_expiry=KEEP_ALIVE_S
            ),
        )
        self._closer = close_with_loop(self.client.aclose)

    async def attach_to_loop(self) -> None:
        await anext(self._closer)

    async def close(self) -> None:
        await self._closer.aclose()


async def close_with_loop(close: Callable[[], Coroutine[Any, Any, None]]) -> AsyncGenerator[None, None]:
    """Call ``close`` when this generator is closed, at the latest by the end of its loop.

    It must be started with ``anext``.
    """
    try:
        yield
    finally:
        await close()
