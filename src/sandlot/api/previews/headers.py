"""Which headers pass between a visitor and a program, and in which form. Pure.

A program in a sandbox may be an attacker. What it sends must have no effect beyond its preview: neither on
the API, whose host it may share, nor on other previews, nor on a proxy in front of the server.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sandlot.wire.network.http_headers import Headers, Pairs, end_to_end, framing, values_of

# With scripts, but without an origin: no storage, no cookies, no service workers, and nothing of the API.
SANDBOX: Final = (
    b"sandbox allow-scripts allow-forms allow-popups allow-modals allow-downloads allow-pointer-lock"
)
# A private preview in a frame of another site would be clicked on unseen.
NO_FOREIGN_FRAMES: Final = b"frame-ancestors 'self'"

# What a visitor says that is not for the program: to the API, to proxies, or about where the page stands.
_NOT_FOR_PROGRAMS: Final = frozenset(
    {
        *(
            b"host",
            b"x-api-key",
            b"referer",
            b"origin",
            b"cookie",
            b"forwarded",
            b"x-real-ip",
            b"x-request-id",
            b"e2b-traffic-access-token",
        ),
        *(b"authorization", b"service-worker"),
    }
)
# What a program must not say for the whole host, or to a proxy in front of the server.
_NOT_FOR_VISITORS: Final = frozenset(
    {
        *(b"alt-svc", b"strict-transport-security", b"service-worker-allowed", b"nel", b"report-to"),
        *(b"reporting-endpoints", b"public-key-pins", b"x-sendfile", b"x-reproxy-url", b"date", b"location"),
        *(b"set-cookie", b"x-sandlot-worker", b"content-length"),
        b"clear-site-data",  # it deletes the cookies of all hosts under the same registered domain
    }
)
# ... and what it must not say if the host is the API's.
_NOT_ON_THE_APIS_HOST: Final = frozenset(
    {
        *(b"www-authenticate", b"referrer-policy", b"cross-origin-resource-policy"),
        *(b"cross-origin-opener-policy", b"cross-origin-embedder-policy", b"origin-agent-cluster"),
    }
)
_BY_PATH: Final[Headers] = [
    (b"content-security-policy", SANDBOX),
    # The path is the secret.
    (b"referrer-policy", b"no-referrer"),
    # Without an origin, a page needs this to load its own modules. It opens nothing: the path is the secret.
    (b"access-control-allow-origin", b"*"),
    (b"access-control-expose-headers", b"*"),
    (b"cross-origin-resource-policy", b"cross-origin"),
]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a preview is, for its visitor and for the program.

    port: the program's.
    host: the public host, as the visitor wrote it.
    scheme: ``http`` or ``https``, as far as the server knows.
    prefix: the preview's part of the path; empty if it has a host of its own.
    cookie: the name of its cookie; empty if it has none.
    private: whether the visitor needed a link.
    """

    port: int
    host: bytes
    scheme: str
    prefix: bytes = b""
    cookie: bytes = b""
    private: bool = True

    @property
    def local(self) -> bytes:
        """The program's own host. Servers for developers answer only to such names."""
        return b"localhost:%d" % self.port

    @property
    def origin(self) -> bytes:
        return self.scheme.encode() + b"://" + self.host


def for_program(headers: Pairs, place: Place, *, authorization: bool) -> Headers:
    """The headers of a request, without those that say how long it is and what becomes of the connection.

    ``authorization``: whether that header is the program's own matter.
    """
    kept: Headers = []
    dropped: tuple[bytes, ...] = (b"x-forwarded-", b"sec-websocket-")
    if place.prefix:  # the page has no origin, so a browser calls each of its requests cross-site
        dropped += (b"sec-fetch-",)
    for name, value in end_to_end(headers):
        if name == b"cookie" and not place.prefix:
            if own := _without_cookie(value, place.cookie):
                kept.append((name, own))
        elif name == b"authorization" and authorization:
            kept.append((name, value))
        elif name == b"origin" and (own := _origin_inside(value, place)):
            kept.append((name, own))
        elif name not in _NOT_FOR_PROGRAMS and not name.startswith(dropped):
            kept.append((name, value))
    kept += [(b"x-forwarded-host", place.host), (b"x-forwarded-proto", place.scheme.encode())]
    if place.prefix:
        kept.append((b"x-forwarded-prefix", place.prefix))
    return kept


def for_visitor(headers: Pairs, place: Place) -> Headers:
    """The headers of an answer."""
    pairs = list(headers)
    dropped = _NOT_FOR_VISITORS | (_NOT_ON_THE_APIS_HOST if place.prefix else frozenset())
    kept = [
        (name, value)
        for name, value in end_to_end(pairs)
        if name not in dropped
        and not name.startswith((b"x-accel-", b"sec-websocket-"))
        and not (place.prefix and name.startswith(b"access-control-"))
    ]
    kept += [(b"location", _location_outside(value, place)) for value in values_of(pairs, b"location")[:1]]
    kept.append((b"x-accel-buffering", b"no"))  # nginx passes each piece on at once
    if place.private:
        kept.append((b"cache-control", b"private"))
    if place.prefix:
        # Cookies would be the whole host's. A page without an origin could not use them anyway.
        return kept + _BY_PATH
    for value in values_of(pairs, b"set-cookie"):
        if own := _host_only(value, place.cookie):
            kept.append((b"set-cookie", own))
    if place.private:
        kept.append((b"content-security-policy", NO_FOREIGN_FRAMES))
    return kept


def length_of(status: int, headers: Pairs) -> Headers:
    """``content-length``, if the answer says how long it is. Without a body, it speaks of another answer."""
    return [pair for pair in framing(headers) if pair[0] == b"content-length" and status not in (204, 304)]


def preflight(headers: Pairs) -> Headers | None:
    """The answer to a browser that asks whether a page without an origin may make a request.

    None if it is not such a question. The answer opens nothing: the path is the secret.
    """
    pairs = list(headers)
    methods = values_of(pairs, b"access-control-request-method")
    if not methods:
        return None
    return [
        *_BY_PATH,
        (b"access-control-allow-methods", methods[0]),
        (b"access-control-allow-headers", b", ".join(values_of(pairs, b"access-control-request-headers"))),
        (b"access-control-max-age", b"600"),
        (b"vary", b"access-control-request-headers"),
    ]


def cookies_named(headers: Pairs, name: bytes) -> list[bytes]:
    """The values of all cookies with the name. Another preview of the same site could have set one more."""
    found = []
    for value in values_of(headers, b"cookie"):
        for part in value.split(b";"):
            key, equals, content = part.strip().partition(b"=")
            if equals and key == name:
                found.append(content)
    return found[:8]


def _without_cookie(value: bytes, cookie: bytes) -> bytes:
    parts = [part.strip() for part in value.split(b";")]
    return b"; ".join(part for part in parts if part and part.partition(b"=")[0].strip() != cookie)


def _host_only(value: bytes, cookie: bytes) -> bytes:
    """A program's cookie for its own host and no other. Empty if it takes the name of ours."""
    first, *attributes = value.split(b";")
    if not first.strip() or first.partition(b"=")[0].strip().lower() == cookie.lower():
        return b""
    kept = [part for part in attributes if part.partition(b"=")[0].strip().lower() != b"domain"]
    return b";".join([first, *kept])


def _origin_inside(value: bytes, place: Place) -> bytes:
    """The origin of the preview's own pages is the program's own. Others are told as they are."""
    if value.lower() == place.origin.lower() or (place.prefix and value.lower() == b"null"):
        return b"http://" + place.local
    return value


def _location_outside(value: bytes, place: Place) -> bytes:
    for own in (b"http://" + place.local, b"http://127.0.0.1:%d" % place.port, place.origin):
        if value.lower().startswith(own.lower()) and value[len(own) : len(own) + 1] in (
            b"",
            b"/",
            b"?",
            b"#",
        ):
            value = value[len(own) :] or b"/"
            break
    is_path = value.startswith(b"/") and not value.startswith(b"//")
    has_prefix = value == place.prefix or value.startswith(place.prefix + b"/")
    return place.prefix + value if is_path and not has_prefix else value
