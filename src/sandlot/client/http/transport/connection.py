"""The connection to one server: headers, errors and retries.

Its pools (``pools.py``) may be shared.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import re
import ssl
from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol, Self, TypeVar

import httpx
import msgspec

from sandlot.client.http.retries.rules import with_retries
from sandlot.client.http.transport.errors import (
    error_of_answer,
    error_of_transport,
    interrupted,
    is_transport_failure,
    unreachable,
    unreadable,
    wrong_server,
)
from sandlot.client.http.transport.pools import Pools, Trust
from sandlot.domain.capacity.budget import ByteBudget
from sandlot.domain.errors import InvalidRequest, SandlotError
from sandlot.domain.execution import MAX_OUTPUT_LIMIT_BYTES
from sandlot.wire.http_bodies import WORKER_HEADER
from sandlot.wire.packed import PACKED
from sandlot.wire.tracing import traces
from sandlot.wire.tracing.request_id import REQUEST_ID_HEADER

CONNECT_TIMEOUT_S: Final = 10.0
READ_TIMEOUT_S: Final = 60.0
WRITE_TIMEOUT_S: Final = 60.0
# The largest result: three times 16 MiB of output that JSON writes as \u0000.
MAX_ANSWER_BYTES: Final = 320 * 1024 * 1024
# A coordinator reads for many clients: it has a budget for large answers, and gives up slow ones.
LARGE_ANSWER_BYTES: Final = 1024 * 1024
LARGE_BUDGET_WAIT_S: Final = 5.0
LARGE_READ_S: Final = 10.0
SLOWEST_BYTES_PER_S: Final = 1024 * 1024
MAX_ERROR_BYTES: Final = 1024 * 1024
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

# A key, or a function that returns the current key before each request.
ApiKey = str | Callable[[], str] | None


class Decoder(Protocol[T_co]):
    """A msgspec decoder, or an object with the same method."""

    def decode(self, body: bytes, /) -> T_co: ...


@dataclass(frozen=True, slots=True)
class _Headers:
    """The headers of every request, built once: building them takes longer than sending them."""

    key: str | None
    auth: Mapping[str, str]
    plain: httpx.Headers
    json: httpx.Headers

    @classmethod
    def of(cls, key: str | None) -> _Headers:
        if key is not None and re.fullmatch(r"[!-~]+", key) is None:
            raise InvalidRequest("Invalid API key. Use printable ASCII without spaces.")
        auth = {} if key is None else {"Authorization": f"Bearer {key}"}
        plain = {
            "Accept": f"application/json, {PACKED}",
            "Accept-Encoding": "identity",
            "User-Agent": "sandlot",
            **auth,
        }
        with_json = {**plain, "Content-Type": "application/json"}
        return cls(key, auth, httpx.Headers(plain), httpx.Headers(with_json))


class Connection:
    """Makes requests to one server and turns failures into ``SandlotError``."""

    def __init__(
        self,
        url: str,
        api_key: ApiKey = None,
        *,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        trust: Trust | None = None,
        worker: str = "",
        proxy: bool = True,
        request_id: Callable[[], str] | None = None,
        large_answers: ByteBudget | None = None,
    ) -> None:
        """Connect to the server at ``url``. Nothing is sent before the first request.

        ``trust``: the trusted certificates. Connections share them, because loading them is slow.
        ``worker``: the id of the worker that must answer; empty means any server. ``proxy``:
        whether to use a proxy that the environment names. ``request_id``: returns the id to send
        with each request made on behalf of another; empty means none. ``large_answers``: a budget
        for reading large answers, for a process that reads for many clients.
        """
        self.url = url.rstrip("/")
        try:
            parsed = httpx.URL(self.url)
        except httpx.InvalidURL as error:
            raise InvalidRequest(f"Invalid server URL {url!r}: {error}") from error
        if parsed.scheme not in {"http", "https"} or not parsed.host or parsed.query or parsed.fragment:
            raise InvalidRequest(f"Invalid server URL {url!r}. Example: http://127.0.0.1:8000")
        if parsed.port is not None and not 0 < parsed.port <= 65535:
            raise InvalidRequest(f"Invalid port in {url!r}. Use 1 to 65535.")
        self.secure = parsed.scheme == "https"
        self.host = parsed.host
        self.loopback = parsed.host in LOOPBACK
        self.connect_timeout_s = connect_timeout_s
        self.worker = worker
        # Whether a Sandlot server ever answered here. If so, an unreachable server will come back.
        self.has_answered = False
        self.trust = trust or Trust()
        self._request_id = request_id
        self._large_answers = large_answers
        self.set_key(api_key)
        # A proxy is only for other machines.
        self.through_proxy = proxy and not self.loopback
        self._pools = Pools(self.tls, through_proxy=self.through_proxy)

    def with_key(self, api_key: ApiKey) -> Self:
        """Return a copy with another key, which shares the open connections."""
        other = copy.copy(self)
        other.set_key(api_key)
        return other

    def set_key(self, api_key: ApiKey) -> None:
        self._key_source = api_key if callable(api_key) else None
        self._headers = _Headers.of(None if callable(api_key) else api_key)

    @property
    def identity_headers(self) -> Mapping[str, str]:
        """The key, request id and trace, for requests sent by other means: WebSockets, fleet creates."""
        return {**self._current_headers().auth, **self._request_id_headers(), **traces.headers()}

    def _request_id_headers(self) -> Mapping[str, str]:
        request_id = "" if self._request_id is None else self._request_id()
        return {REQUEST_ID_HEADER: request_id} if request_id else {}

    def _current_headers(self) -> _Headers:
        if self._key_source is not None and (key := self._key_source()) != self._headers.key:
            self._headers = _Headers.of(key)
        return self._headers

    # single calls

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
        """Make a call with retries; return status and body, or raise a ``SandlotError``."""
        return await with_retries(
            lambda: self.call_once(method, path, body, headers=headers, read_timeout_s=read_timeout_s),
            repeatable=repeatable,
        )

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
            async with self._within_budget(response):
                return response.status_code, await _read(response, MAX_ANSWER_BYTES, self.url)
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise error_of_transport(self.url, error) from error
        finally:
            await response.aclose()

    @contextlib.asynccontextmanager
    async def _within_budget(self, response: httpx.Response) -> AsyncIterator[None]:
        size = _announced_size(response)
        if self._large_answers is None or size < LARGE_ANSWER_BYTES:
            yield
            return
        async with self._large_answers.acquired(size, within_s=LARGE_BUDGET_WAIT_S):
            try:
                async with asyncio.timeout(LARGE_READ_S + size / SLOWEST_BYTES_PER_S):
                    yield
            except TimeoutError as error:
                raise interrupted(self.url, "the response did not arrive in time") from error

    async def open(
        self,
        method: str,
        path: str,
        body: bytes | AsyncIterable[bytes] | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        read_timeout_s: float = READ_TIMEOUT_S,
    ) -> httpx.Response:
        """Send a request and return a successful answer with an unread body.

        The caller closes it.
        """
        with traces.span(f"sandlot {method}", "CLIENT", url_path=path.partition("?")[0]):
            return await self._open(method, path, body, headers, read_timeout_s)

    async def _open(
        self,
        method: str,
        path: str,
        body: bytes | AsyncIterable[bytes] | None,
        headers: Mapping[str, str] | None,
        read_timeout_s: float,
    ) -> httpx.Response:
        client = self._pools.current() or await self._pools.create()
        prepared = self._current_headers()
        base = prepared.json if isinstance(body, bytes) else prepared.plain
        if self._request_id is not None:
            headers = {**(headers or {}), **self._request_id_headers()}
        if context := traces.headers():
            headers = {**(headers or {}), **context}
        if headers:
            base = base.copy()
            base.update(headers)
        timeouts = {
            "connect": self.connect_timeout_s,
            "read": read_timeout_s,
            "write": WRITE_TIMEOUT_S,
            "pool": CONNECT_TIMEOUT_S,
        }
        try:
            # Built here to save time: the client would add nothing, but check each time.
            request = httpx.Request(
                method, self.url + path, headers=base, content=body, extensions={"timeout": timeouts}
            )
            response = await client.send(request, stream=True)
        except httpx.InvalidURL as error:
            raise InvalidRequest(f"Cannot send this request to {self.url}: {error}") from error
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise error_of_transport(self.url, error) from error
        except AttributeError as error:
            # anyio raises this if a connection closes just as it opens. Nothing was sent.
            if "getpeername" not in str(error):
                raise
            raise unreachable(self.url, "it closed right after it opened") from error
        if response.status_code < 300 and self.is_expected_worker(response.headers):
            self.has_answered = True
            return response
        try:
            answer = await _read(response, MAX_ERROR_BYTES, self.url)
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise error_of_transport(self.url, error) from error
        finally:
            await response.aclose()
        refusal = self.refusal(response.status_code, answer, response.headers)
        self.has_answered = self.has_answered or not is_transport_failure(refusal)
        raise refusal

    def refusal(self, status: int, answer: bytes, headers: Mapping[str, str]) -> SandlotError:
        if self.is_expected_worker(headers):
            return error_of_answer(self.url, status, answer, headers)
        return wrong_server(self.url, self.worker, status)

    def is_expected_worker(self, headers: Mapping[str, str]) -> bool:
        return not self.worker or headers.get(WORKER_HEADER) == self.worker

    @contextlib.asynccontextmanager
    async def reading(self, response: httpx.Response) -> AsyncIterator[httpx.Response]:
        """Close the answer after the caller has read it.

        A break meanwhile raises a ``SandlotError``.
        """
        try:
            yield response
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise error_of_transport(self.url, error) from error
        finally:
            await response.aclose()

    def decode(self, decoder: Decoder[T], body: bytes) -> T:
        try:
            return decoder.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise unreadable(self.url, error) from error

    def tls(self) -> ssl.SSLContext | None:
        """The TLS context of all connections to this server; None without TLS."""
        return self.trust.context() if self.secure else None

    async def close(self) -> None:
        """Close all connections, including those of other loops that still run."""
        await self._pools.close()


def _announced_size(response: httpx.Response) -> int:
    """Return the announced size of the body; without one, the largest size of a packed result."""
    if "transfer-encoding" in response.headers:
        return 2 * MAX_OUTPUT_LIMIT_BYTES
    length = response.headers.get("content-length", "")
    return int(length) if length.isdecimal() else 0


async def _read(response: httpx.Response, max_bytes: int, url: str) -> bytes:
    pieces = []
    total = 0
    async for piece in response.aiter_raw():
        total += len(piece)
        if total > max_bytes:
            raise unreadable(url, f"more than {max_bytes} bytes")
        pieces.append(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
