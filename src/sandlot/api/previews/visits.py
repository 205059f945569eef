"""Who visits which preview: reads a request's address, link and cookie. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from starlette.types import Scope

from sandlot.api.edge.admission import host_name
from sandlot.api.previews.headers import Place, cookies_named
from sandlot.api.previews.options import PreviewOptions
from sandlot.api.previews.pages import Refused, bad_link, nothing_here
from sandlot.domain.errors import Unauthorized
from sandlot.domain.network.ports import PUBLIC
from sandlot.domain.network.preview_links import LINK_FIELD, PREVIEW_PATH, Link, PreviewDomain
from sandlot.wire.network.http_headers import has_two_ends, values_of

# A browser takes this name only from the host itself, by https and for all of its paths.
SECURE_COOKIE: Final = b"__Host-sandlot-preview"
PLAIN_COOKIE: Final = b"sandlot-preview"
_HOST: Final = re.compile(rb"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?")
_FIELD: Final = LINK_FIELD.encode() + b"="
_PATH: Final = PREVIEW_PATH.encode()
_SAFE: Final = ("GET", "HEAD")


@dataclass(frozen=True, slots=True)
class Visit:
    """A request that may go to a program, unless the session's worker says otherwise.

    through: the exposure that the visitor knows of; ``PUBLIC`` for one without a link.
    target: what to ask the program for.
    """

    session_id: str
    port: int
    through: str
    place: Place
    target: bytes


@dataclass(frozen=True, slots=True)
class Redirect:
    """``cookie``: what the browser has to send from now on; empty for nothing."""

    location: bytes
    cookie: bytes = b""


def is_for_previews(scope: Scope, domain: PreviewDomain | None) -> bool:
    return scope["path"].startswith(PREVIEW_PATH) or (domain is not None and domain.covers(_host(scope)))


def read_visit(scope: Scope, options: PreviewOptions) -> Visit | Redirect:
    """Raises ``Refused`` if the address is that of no preview, or the link is bad."""
    if has_two_ends(scope["headers"]):
        raise Refused(400, "Bad request", "The request has both Content-Length and Transfer-Encoding.")
    hosts = values_of(scope["headers"], b"host")
    if len(hosts) != 1 or _HOST.fullmatch(hosts[0]) is None:
        raise Refused(400, "Bad request", "A request names exactly one host.")
    if values_of(scope["headers"], b"service-worker"):
        raise Refused(403, "No service workers", "Previews have no service workers.")
    host, domain = _host(scope), options.domain
    if domain is not None and domain.covers(host):
        visit = _by_host(scope, options, domain, host)
    elif options.allowed_hosts is not None and host not in options.allowed_hosts:
        raise Refused(403, "Unknown host name", "The server does not answer to this name.")
    else:
        visit = _by_path(scope, options)
    if isinstance(visit, Visit) and visit.through == PUBLIC and not options.public:
        raise nothing_here()  # exposed before the operator forbade it, or by a call to a worker of the fleet
    return visit


def _by_path(scope: Scope, options: PreviewOptions) -> Visit | Redirect:
    raw: bytes = scope["raw_path"]
    if not raw.startswith(_PATH):  # only its decoded form does
        raise nothing_here()
    token, slash, rest = raw.removeprefix(_PATH).partition(b"/")
    link = _read(options, token)
    prefix, query = _PATH + token, scope["query_string"]
    if not slash:
        return Redirect(_with_query(prefix + b"/", query))
    place = Place(
        link.port, _host_header(scope), _scheme(scope), prefix=prefix, private=link.exposure != PUBLIC
    )
    path = raw if link.keep_prefix else b"/" + rest
    return Visit(link.session_id, link.port, link.exposure, place, _with_query(path, query))


def _by_host(scope: Scope, options: PreviewOptions, domain: PreviewDomain, host: str) -> Visit | Redirect:
    target = domain.target(host)
    if target is None:
        raise nothing_here()
    session_id, port = target
    cookie = SECURE_COOKIE if domain.scheme == "https" else PLAIN_COOKIE
    path: bytes = scope["raw_path"]
    fields = [field for field in scope["query_string"].split(b"&") if field]
    query = b"&".join(field for field in fields if not field.startswith(_FIELD))
    tokens = [field.removeprefix(_FIELD) for field in fields if field.startswith(_FIELD)]
    if tokens and scope.get("method") in _SAFE:
        link = _read(options, tokens[0])
        if (link.session_id, link.port) != target:
            raise bad_link(Unauthorized("This link is for another preview."))
        origin = domain.scheme.encode() + b"://" + _host_header(scope)  # a path alone may look like a host
        return Redirect(origin + _with_query(path, query), _set_cookie(cookie, tokens[0], domain))
    through = _by_cookie(scope, options, cookie, target)
    place = Place(port, _host_header(scope), domain.scheme, cookie=cookie, private=through is not None)
    if through is not None:
        _check_site(scope, place)
    return Visit(session_id, port, through or PUBLIC, place, _with_query(path, query))


def _by_cookie(scope: Scope, options: PreviewOptions, cookie: bytes, target: tuple[str, int]) -> str | None:
    """The exposure of a link that the browser has shown before, if that link is for this preview."""
    for token in cookies_named(scope["headers"], cookie):
        try:
            link = options.tokens.read(token.decode("latin-1"))
        except Unauthorized:
            continue
        if (link.session_id, link.port) == target and link.exposure != PUBLIC:
            return link.exposure
    return None


def _check_site(scope: Scope, place: Place) -> None:
    """The browser sends the cookie of a private preview by itself, so another page must not cause requests.

    Other previews are of the same site: ``SameSite`` does not keep them out.
    """
    headers = scope["headers"]
    origins = values_of(headers, b"origin")
    foreign = any(origin.lower() != place.origin.lower() for origin in origins)
    site = (values_of(headers, b"sec-fetch-site") or [b"none"])[0]
    if not foreign and site in (b"same-origin", b"none"):
        return
    opens_page = (
        scope.get("method") in _SAFE
        and not origins
        and values_of(headers, b"sec-fetch-mode") == [b"navigate"]
        and values_of(headers, b"sec-fetch-dest") == [b"document"]
    )
    if not opens_page:
        raise Refused(403, "Not from here", "Another site must not use a private preview.")


def _read(options: PreviewOptions, token: bytes) -> Link:
    try:
        return options.tokens.read(token.decode("latin-1"))
    except Unauthorized as error:
        raise bad_link(error) from None


def _set_cookie(name: bytes, token: bytes, domain: PreviewDomain) -> bytes:
    secure = b"; Secure" if domain.scheme == "https" else b""
    # Until the browser ends: the server itself checks when the link does.
    return name + b"=" + token + b"; Path=/; HttpOnly; SameSite=Lax" + secure


def _host(scope: Scope) -> str:
    return host_name(_host_header(scope))


def _host_header(scope: Scope) -> bytes:
    return (values_of(scope["headers"], b"host") or [b""])[0]


def _scheme(scope: Scope) -> str:
    """A proxy in front may say that the visitor uses https. Only the program reads it."""
    said = values_of(scope["headers"], b"x-forwarded-proto")
    if said in ([b"http"], [b"https"]):
        return said[0].decode()
    return "https" if scope["scheme"] in ("https", "wss") else "http"


def _with_query(path: bytes, query: bytes) -> bytes:
    return path + b"?" + query if query else path
