"""What a request to the proxy asks for, and what of its head is passed on. No input or output here.

h11 reads and writes all messages, so each has one framing: what a host reads was written by h11, from what
h11 has understood, and no header of the sandbox decides where a message ends.
"""

from __future__ import annotations

import re
from typing import Final

import h11

from sandlot.domain.errors import InvalidRequest
from sandlot.domain.network.hosts import Target, parse_target
from sandlot.domain.secrets.gateways import GATEWAY_HOST
from sandlot.wire.network.http_headers import end_to_end, framing, has_two_ends, values_of

HTTP_PORT: Final = 80
MAX_BODY_BYTES: Final = 2**63 - 1

_ABSOLUTE: Final = re.compile(rb"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)([^#]*)", re.DOTALL)


class BadRequest(Exception):
    """The request is not one for a proxy, or could be read in two ways."""


def tunnel_target(request: h11.Request) -> Target:
    """Where CONNECT leads to."""
    _check_version(request)
    if values_of(request.headers, b"content-length") or values_of(request.headers, b"transfer-encoding"):
        raise BadRequest("CONNECT has no body.")
    target = _parsed(request.target, None)
    # Tools differ in whether they name the port 443 in this header.
    for host in values_of(request.headers, b"host"):
        if _parsed(host, target.port) != target:
            raise BadRequest("The Host header and the target of CONNECT differ.")
    return target


def plain_target(
    request: h11.Request, inside: Target | None = None, default_port: int = HTTP_PORT
) -> tuple[Target, bytes]:
    """Where a plain request leads to, and what to ask for there.

    ``inside``: where the tunnel leads to that the request came through; None for the proxy itself.
    ``default_port``: of a Host header without one.
    """
    _check_version(request)
    _check_framing(request)
    if inside is not None:
        if not (request.target.startswith(b"/") or request.target == b"*"):
            raise BadRequest("A request inside a tunnel has a path as its target.")
        target, path = inside, request.target
    elif _is_for_this_proxy(request):
        return Target(GATEWAY_HOST, HTTP_PORT), request.target
    else:
        target, path = _absolute(request)
    hosts = values_of(request.headers, b"host")
    if not hosts and request.http_version != b"1.0":
        raise BadRequest("The request has no Host header.")
    for host in hosts:
        if _parsed(host, default_port) != target:
            raise BadRequest("The Host header and the target of the request differ.")
    return target, path


def request_for_host(
    request: h11.Request, target: Target, path: bytes, default_port: int = HTTP_PORT
) -> h11.Request:
    host = str(target.host) if target.port == default_port else str(target)
    return h11.Request(
        method=request.method,
        target=path,
        headers=[
            (b"host", host.encode()),
            *(pair for pair in end_to_end(request.headers) if pair[0] != b"host"),
            *framing(request.headers),
            (b"connection", b"close"),
        ],
    )


def response_for_program(response: h11.Response) -> h11.Response:
    return h11.Response(
        status_code=response.status_code,
        reason=response.reason,
        headers=[*end_to_end(response.headers), *framing(response.headers)],
    )


def _is_for_this_proxy(request: h11.Request) -> bool:
    """Whether a program calls the proxy as if it were a server. Then it means a gateway: some programs, such
    as those on Node, do not use a proxy that variables name."""
    if not request.target.startswith(b"/"):
        return False
    hosts = [_parsed(host, HTTP_PORT).host for host in values_of(request.headers, b"host")]
    return bool(hosts) and all(
        host.text == "localhost" if host.address is None else host.address.is_loopback for host in hosts
    )


def _absolute(request: h11.Request) -> tuple[Target, bytes]:
    found = _ABSOLUTE.fullmatch(request.target)
    if found is None:
        raise BadRequest("This is a proxy. A request to it names a whole URL, as in GET http://HOST/PATH.")
    scheme, authority, path = found.groups()
    if scheme.lower() == b"https":
        raise BadRequest("Use CONNECT for https.")
    if scheme.lower() != b"http":
        raise BadRequest("The proxy speaks http, and https by CONNECT.")
    target = _parsed(authority, HTTP_PORT)
    if not path and request.method == b"OPTIONS":
        return target, b"*"
    return target, path if path.startswith(b"/") else b"/" + path


def _parsed(text: bytes, default_port: int | None) -> Target:
    try:
        return parse_target(text.decode("latin-1"), default_port)
    except InvalidRequest as error:
        raise BadRequest(error.message) from None


def _check_version(request: h11.Request) -> None:
    if request.http_version not in (b"1.0", b"1.1"):
        raise BadRequest("The proxy speaks HTTP/1.1.")


def _check_framing(request: h11.Request) -> None:
    """h11 has refused lengths that differ and unknown encodings. Two ways to end a body are still two."""
    if has_two_ends(request.headers):
        raise BadRequest("The request has both Content-Length and Transfer-Encoding.")
    if values_of(request.headers, b"transfer-encoding") and request.http_version == b"1.0":
        raise BadRequest("HTTP/1.0 has no Transfer-Encoding.")
    # A host that counts in 64 bits would read a longer one as a short one, and the rest as another request.
    if any(int(length) > MAX_BODY_BYTES for length in values_of(request.headers, b"content-length")):
        raise BadRequest("The Content-Length is too large.")
