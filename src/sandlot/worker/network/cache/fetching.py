"""Asks a registry for a page or a file, on behalf of the worker and not of a session."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Final

import h11

from sandlot import __version__
from sandlot.domain.errors import InvalidRequest
from sandlot.domain.network.hosts import Target
from sandlot.domain.packages.registries import Wanted
from sandlot.domain.secrets.gateways import Upstream, parse_upstream
from sandlot.domain.secrets.secret import TLS_PORT
from sandlot.wire.network.http_headers import values_of
from sandlot.worker.network.cache.options import CacheOptions
from sandlot.worker.network.dialer import Dialer, EgressDenied
from sandlot.worker.network.http import HTTP_PORT
from sandlot.worker.network.names import reason_of
from sandlot.worker.network.streams import HostProblem, HostStream

OK: Final = 200
NOT_MODIFIED: Final = 304
_REDIRECTS: Final = (301, 302, 303, 307, 308)
_AGENT: Final = f"sandlot/{__version__} (package cache)".encode()


@dataclass(slots=True)
class Answer:
    """What a registry says. ``length``: of its body, if it says so."""

    status: int
    type: str
    etag: str
    length: int | None
    location: str
    _host: HostStream
    _http: h11.Connection
    _options: CacheOptions
    _target: Target

    async def body(self) -> AsyncIterator[bytes]:
        """Raises ``HostProblem`` if the registry breaks off."""
        while True:
            event = await _next_event(self._http, self._host, self._target, self._options)
            if isinstance(event, h11.Data):
                yield bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                return


class Fetcher:
    def __init__(self, dialer: Dialer, options: CacheOptions) -> None:
        self._dialer = dialer
        self._options = options
        self._resolving = asyncio.Semaphore(options.at_once)

    @contextlib.asynccontextmanager
    async def get(self, wanted: Wanted, etag: str = "") -> AsyncIterator[Answer]:
        """Raises ``HostProblem`` if the registry cannot be reached or does not answer as it should.

        ``etag``: of what is known already. A redirect is followed to public hosts that speak TLS.
        """
        declared = True
        for _ in range(self._options.max_redirects + 1):
            async with self._ask(wanted, etag, declared=declared) as answer:
                if answer.status not in _REDIRECTS:
                    yield answer
                    return
                wanted, declared = _redirected(wanted, answer.location), False
        raise HostProblem(502, f"{wanted.target} redirects too often.")

    @contextlib.asynccontextmanager
    async def _ask(self, wanted: Wanted, etag: str, *, declared: bool) -> AsyncIterator[Answer]:
        host = await self._connect(wanted, declared=declared)
        try:
            http = h11.Connection(h11.CLIENT, max_incomplete_event_size=self._options.max_head_bytes)
            request = _request(wanted, etag)
            await host.send((http.send(request) or b"") + (http.send(h11.EndOfMessage()) or b""))
            head = await _next_event(http, host, wanted.target, self._options)
            while isinstance(head, h11.InformationalResponse):
                head = await _next_event(http, host, wanted.target, self._options)
            if not isinstance(head, h11.Response):
                raise _broken(wanted.target)
            yield Answer(
                head.status_code,
                _header(head, b"content-type"),
                _header(head, b"etag"),
                int(length) if (length := _header(head, b"content-length")) else None,
                _header(head, b"location"),
                host,
                http,
                self._options,
                wanted.target,
            )
        except OSError:
            raise _broken(wanted.target) from None
        finally:
            host.abort()

    async def _connect(self, wanted: Wanted, *, declared: bool) -> HostStream:
        try:
            return await self._dialer.connect(
                wanted.target, lambda *_: None, self._resolving, tls=wanted.tls, declared=declared
            )
        except EgressDenied as error:  # a redirect to a private address
            raise HostProblem(502, error.denied.why) from None
        except TimeoutError:
            raise HostProblem(504, f"{wanted.target} did not answer in time.") from None
        except OSError as error:
            raise HostProblem(502, f"{wanted.target} cannot be reached: {reason_of(error)}.") from None


async def _next_event(
    http: h11.Connection, host: HostStream, target: Target, options: CacheOptions
) -> h11.Event:
    try:
        while (event := http.next_event()) is h11.NEED_DATA:
            async with asyncio.timeout(options.idle_s):
                http.receive_data(await host.receive())
    except TimeoutError:
        raise HostProblem(504, f"{target} stopped answering.") from None
    except (h11.RemoteProtocolError, OSError):
        raise _broken(target) from None
    if not isinstance(event, h11.Event) or isinstance(event, h11.ConnectionClosed):
        raise _broken(target)
    return event


def _request(wanted: Wanted, etag: str) -> h11.Request:
    default_port = TLS_PORT if wanted.tls else HTTP_PORT
    host = str(wanted.target.host if wanted.target.port == default_port else wanted.target)
    headers = [
        (b"host", host.encode()),
        (b"user-agent", _AGENT),
        (b"accept", wanted.accept.encode() or b"*/*"),
        (b"accept-encoding", b"identity"),
        (b"connection", b"close"),
    ]
    if etag:
        headers.append((b"if-none-match", etag.encode("latin-1")))
    return h11.Request(method=b"GET", target=wanted.path.encode(), headers=headers)


def _redirected(wanted: Wanted, location: str) -> Wanted:
    """Only to names that speak TLS: the registry says where to, and not the operator."""
    path = location
    target, tls = wanted.target, wanted.tls
    if not location.startswith("/") or location.startswith("//"):
        scheme_and_host, slash, rest = location.removeprefix("https://").partition("/")
        if not location.startswith("https://"):
            raise HostProblem(502, f"{wanted.target} redirects to something that is not https.")
        try:
            upstream: Upstream = parse_upstream(f"https://{scheme_and_host}")
        except InvalidRequest:
            raise HostProblem(502, f"{wanted.target} redirects to something that is no host.") from None
        target, tls, path = upstream.target, True, slash + rest or "/"
    if not path.isascii() or any(char <= " " for char in path):
        raise HostProblem(502, f"{wanted.target} redirects to something that is no URL.")
    return replace(wanted, target=target, tls=tls, path=path.partition("#")[0])


def _header(head: h11.Response, name: bytes) -> str:
    return b"".join(values_of(head.headers, name)[:1]).decode("latin-1")


def _broken(target: Target) -> HostProblem:
    return HostProblem(502, f"{target} broke off its answer, or it is not valid HTTP.")
