"""The way to one server: a pool of connections per event loop, the headers, the errors, the retries.

A client may be used from several event loops, one after the other or at once; connections belong to a loop.
Each pool is held by an async generator, because a loop that ends closes its generators: so ``asyncio.run``
leaves no socket behind although the client lives on.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
import threading
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Coroutine, Mapping
from typing import Any, Final
from weakref import WeakKeyDictionary

import httpx
import msgspec

from sandlot.client.http.problems import error_of_answer, error_of_transport, unreadable
from sandlot.client.http.retries import pause_before_retry
from sandlot.domain.errors import InvalidRequest, SandlotError, Unavailable

CONNECT_TIMEOUT_S: Final = 10.0
READ_TIMEOUT_S: Final = 60.0
WRITE_TIMEOUT_S: Final = 60.0
KEEP_ALIVE_S: Final = 60.0
# The largest result: three times 16 MiB of output that JSON writes as \u0000.
MAX_ANSWER_BYTES: Final = 320 * 1024 * 1024
MAX_ERROR_BYTES: Final = 1024 * 1024
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


class Connection:
    def __init__(self, url: str, api_key: str | None = None) -> None:
        self.url = url.rstrip("/")
        try:
            parsed = httpx.URL(self.url)
        except httpx.InvalidURL as error:
            raise InvalidRequest(f"{url!r} is not a URL: {error}") from error
        if parsed.scheme not in {"http", "https"} or not parsed.host or parsed.query or parsed.fragment:
            raise InvalidRequest(f"{url!r} is not a server's URL, such as http://127.0.0.1:8000")
        if api_key is not None and re.fullmatch(r"[!-~]+", api_key) is None:
            raise InvalidRequest("an API key is printable ASCII without spaces, and this one is not")
        # A proxy is for other machines.
        self.through_proxy = parsed.host not in LOOPBACK
        self.auth = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        plain = {
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            "User-Agent": "sandlot",
            **self.auth,
        }
        self._headers = httpx.Headers(plain)
        self._json_headers = httpx.Headers({**plain, "Content-Type": "application/json"})
        self._secure = parsed.scheme == "https"
        self._tls: ssl.SSLContext | None = None
        self._pools: WeakKeyDictionary[asyncio.AbstractEventLoop, _Pool] = WeakKeyDictionary()
        self._lock = threading.Lock()  # loops of several threads
        self._closed = False

    # one call

    async def call(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        repeatable: bool,
        headers: Mapping[str, str] | None = None,
        read_timeout_s: float = READ_TIMEOUT_S,
    ) -> tuple[int, bytes]:
        """Status and body of a good answer; an error of the tree otherwise."""
        tries = 0
        while True:
            tries += 1
            try:
                return await self.call_once(
                    method, path, body, headers=headers, read_timeout_s=read_timeout_s
                )
            except SandlotError as error:
                pause = pause_before_retry(error, tries, repeatable=repeatable)
                if pause is None:
                    raise
            await asyncio.sleep(pause)

    async def call_once(
        self,
        method: str,
        path: str,
        body: bytes | AsyncIterable[bytes] | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        read_timeout_s: float = READ_TIMEOUT_S,
    ) -> tuple[int, bytes]:
        response = await self.open(method, path, body, headers=headers, read_timeout_s=read_timeout_s)
        try:
            return response.status_code, await _read(response, MAX_ANSWER_BYTES, self.url)
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise error_of_transport(self.url, error) from error
        finally:
            await response.aclose()

    async def open(
        self,
        method: str,
        path: str,
        body: bytes | AsyncIterable[bytes] | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        read_timeout_s: float = READ_TIMEOUT_S,
    ) -> httpx.Response:
        """A good answer whose body is still to be read; the caller closes it."""
        pool = self._pools.get(asyncio.get_running_loop()) or await self._new_pool()
        base = self._json_headers if isinstance(body, bytes) else self._headers
        if headers is not None:
            base = base.copy()
            base.update(headers)
        timeouts = {
            "connect": CONNECT_TIMEOUT_S,
            "read": read_timeout_s,
            "write": WRITE_TIMEOUT_S,
            "pool": CONNECT_TIMEOUT_S,
        }
        try:
            # Built here and not by the client: it has nothing to add, and would look for it each time.
            request = httpx.Request(
                method, self.url + path, headers=base, content=body, extensions={"timeout": timeouts}
            )
            response = await pool.client.send(request, stream=True)
        except httpx.InvalidURL as error:
            raise InvalidRequest(f"this cannot be asked of {self.url}: {error}") from error
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise error_of_transport(self.url, error) from error
        if response.status_code < 300:
            return response
        try:
            answer = await _read(response, MAX_ERROR_BYTES, self.url)
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise error_of_transport(self.url, error) from error
        finally:
            await response.aclose()
        raise error_of_answer(self.url, response.status_code, answer, response.headers)

    @contextlib.asynccontextmanager
    async def stream(
        self, path: str, *, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[httpx.Response]:
        """A GET whose body the caller reads; what breaks meanwhile is an error of the tree."""
        response = await self.open("GET", path, headers=headers)
        try:
            yield response
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise error_of_transport(self.url, error) from error
        finally:
            await response.aclose()

    def decode(self, decoder: msgspec.json.Decoder[Any], body: bytes) -> Any:
        try:
            return decoder.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise unreadable(self.url, error) from error

    def tls(self) -> ssl.SSLContext | None:
        """Whom every connection to this server trusts; None without TLS. Made once: it is slow."""
        if self._secure and self._tls is None:
            self._tls = httpx.create_ssl_context()
        return self._tls

    # pools

    async def _new_pool(self) -> _Pool:
        if self._closed:
            raise Unavailable("this client is closed", retryable=False)
        pool = _Pool(self.tls() or False, self.through_proxy)
        with self._lock:
            for loop in [loop for loop in self._pools if loop.is_closed()]:
                del self._pools[loop]
            self._pools[asyncio.get_running_loop()] = pool
        # No other task of this loop has run since it had no pool: there is one for it.
        await pool.bind()
        return pool

    async def close(self) -> None:
        """Those of other loops too, as far as these still run."""
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


async def _read(response: httpx.Response, max_bytes: int, url: str) -> bytes:
    pieces = []
    total = 0
    async for piece in response.aiter_raw():
        total += len(piece)
        if total > max_bytes:
            raise unreadable(url, f"more than {max_bytes} bytes")
        pieces.append(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
