"""The way to one server: the headers, the errors, the retries; on pools that may be shared (``pools.py``)."""

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

from sandlot.client.http.pools import Pools, Trust
from sandlot.client.http.problems import (
    error_of_answer,
    error_of_transport,
    interrupted,
    is_of_the_way,
    somebody_else,
    unreachable,
    unreadable,
)
from sandlot.client.http.retries import with_retries
from sandlot.domain.budget import ByteBudget
from sandlot.domain.errors import InvalidRequest, SandlotError
from sandlot.domain.execution import MAX_OUTPUT_LIMIT_BYTES
from sandlot.wire.http_bodies import WORKER_HEADER
from sandlot.wire.packed import PACKED
from sandlot.wire.request_id import REQUEST_ID_HEADER

CONNECT_TIMEOUT_S: Final = 10.0
READ_TIMEOUT_S: Final = 60.0
WRITE_TIMEOUT_S: Final = 60.0
# The largest result: three times 16 MiB of output that JSON writes as \u0000.
MAX_ANSWER_BYTES: Final = 320 * 1024 * 1024
# Who reads for many (a coordinator) has room for so much at once, and gives up what comes too slowly.
LARGE_ANSWER_BYTES: Final = 1024 * 1024
LARGE_ROOM_WITHIN_S: Final = 5.0
LARGE_READ_S: Final = 10.0
SLOWEST_BYTES_PER_S: Final = 1024 * 1024
MAX_ERROR_BYTES: Final = 1024 * 1024
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

# A key, or what is asked for the present one before each request.
ApiKey = str | Callable[[], str] | None


class Decoder(Protocol[T_co]):
    """One of msgspec's, or one that reads as they do."""

    def decode(self, body: bytes, /) -> T_co: ...


@dataclass(frozen=True, slots=True)
class _Dress:
    """The headers of every request, ready made: building them takes longer than sending them."""

    key: str | None
    auth: Mapping[str, str]
    plain: httpx.Headers
    json: httpx.Headers

    @classmethod
    def of(cls, key: str | None) -> _Dress:
        if key is not None and re.fullmatch(r"[!-~]+", key) is None:
            raise InvalidRequest("an API key is printable ASCII without spaces, and this one is not")
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
        large: ByteBudget | None = None,
    ) -> None:
        """``trust``: shared with the connections to other servers, because it is slow to make. ``worker``:
        who must answer. ``proxy``: whether one that the environment names may stand between.
        ``request_id``: asked before each request, for who asks on behalf of another; empty is none.
        ``large``: from which large answers are taken while they are read, by who reads for many.
        """
        self.url = url.rstrip("/")
        try:
            parsed = httpx.URL(self.url)
        except httpx.InvalidURL as error:
            raise InvalidRequest(f"{url!r} is not a URL: {error}") from error
        if parsed.scheme not in {"http", "https"} or not parsed.host or parsed.query or parsed.fragment:
            raise InvalidRequest(f"{url!r} is not a server's URL, such as http://127.0.0.1:8000")
        if parsed.port is not None and not 0 < parsed.port <= 65535:
            raise InvalidRequest(f"{url!r} has no port that exists: 1 to 65535")
        self.secure = parsed.scheme == "https"
        self.host = parsed.host
        self.loopback = parsed.host in LOOPBACK
        self.connect_timeout_s = connect_timeout_s
        self.worker = worker
        # Whether a server of ours was ever heard here: one that is away then will be back.
        self.has_answered = False
        self.trust = trust or Trust()
        self._request_id = request_id
        self._large = large
        self.wear(api_key)
        # A proxy is for other machines.
        self.through_proxy = proxy and not self.loopback
        self._pools = Pools(self.tls, through_proxy=self.through_proxy)

    def with_key(self, api_key: str) -> Self:
        """The same server and its open connections, under another key."""
        other = copy.copy(self)
        other.wear(api_key)
        return other

    def wear(self, api_key: ApiKey) -> None:
        self._ask_key = api_key if callable(api_key) else None
        self._dress = _Dress.of(None if callable(api_key) else api_key)

    @property
    def own_headers(self) -> Mapping[str, str]:
        """Of requests that are sent by other means: WebSockets, a coordinator's creates."""
        return {**self._dressed().auth, **self._identified()}

    def _identified(self) -> Mapping[str, str]:
        request_id = "" if self._request_id is None else self._request_id()
        return {REQUEST_ID_HEADER: request_id} if request_id else {}

    def _dressed(self) -> _Dress:
        if self._ask_key is not None and (key := self._ask_key()) != self._dress.key:
            self._dress = _Dress.of(key)
        return self._dress

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
            async with self._room_for(response):
                return response.status_code, await _read(response, MAX_ANSWER_BYTES, self.url)
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise error_of_transport(self.url, error) from error
        finally:
            await response.aclose()

    @contextlib.asynccontextmanager
    async def _room_for(self, response: httpx.Response) -> AsyncIterator[None]:
        size = _announced(response)
        if self._large is None or size < LARGE_ANSWER_BYTES:
            yield
            return
        async with self._large.held(size, within_s=LARGE_ROOM_WITHIN_S):
            try:
                async with asyncio.timeout(LARGE_READ_S + size / SLOWEST_BYTES_PER_S):
                    yield
            except TimeoutError as error:
                raise interrupted(self.url, "a large answer did not come to its end in time") from error

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
        client = self._pools.present() or await self._pools.new()
        dress = self._dressed()
        base = dress.json if isinstance(body, bytes) else dress.plain
        if self._request_id is not None:
            headers = {**(headers or {}), **self._identified()}
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
            # Built here and not by the client: it has nothing to add, and would look for it each time.
            request = httpx.Request(
                method, self.url + path, headers=base, content=body, extensions={"timeout": timeouts}
            )
            response = await client.send(request, stream=True)
        except httpx.InvalidURL as error:
            raise InvalidRequest(f"this cannot be asked of {self.url}: {error}") from error
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise error_of_transport(self.url, error) from error
        except AttributeError as error:
            # anyio, of a connection that was closed in the moment in which it was made: nothing was sent.
            if "getpeername" not in str(error):
                raise
            raise unreachable(self.url, "closed as soon as it was open") from error
        if response.status_code < 300 and self.is_who_it_should_be(response.headers):
            self.has_answered = True
            return response
        try:
            answer = await _read(response, MAX_ERROR_BYTES, self.url)
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise error_of_transport(self.url, error) from error
        finally:
            await response.aclose()
        refusal = self.refusal(response.status_code, answer, response.headers)
        self.has_answered = self.has_answered or not is_of_the_way(refusal)
        raise refusal

    def refusal(self, status: int, answer: bytes, headers: Mapping[str, str]) -> SandlotError:
        if self.is_who_it_should_be(headers):
            return error_of_answer(self.url, status, answer, headers)
        return somebody_else(self.url, self.worker, status)

    def is_who_it_should_be(self, headers: Mapping[str, str]) -> bool:
        return not self.worker or headers.get(WORKER_HEADER) == self.worker

    @contextlib.asynccontextmanager
    async def reading(self, response: httpx.Response) -> AsyncIterator[httpx.Response]:
        """An open answer whose body the caller reads; what breaks meanwhile is an error of the tree."""
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
        """Whom every connection to this server trusts; None without TLS."""
        return self.trust.context() if self.secure else None

    async def close(self) -> None:
        """Those of other loops too, as far as these still run."""
        await self._pools.close()


def _announced(response: httpx.Response) -> int:
    """How large the body is; where nobody says so, as large as a result can be that is not JSON."""
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
