"""Who may come in: the key or token, the host that was asked for, the page that a browser asks from. Pure.

Everything is closed but a named few paths. There is no cookie and no CORS, so a foreign page has no way to
read an answer; the checks of Host (DNS rebinding), Origin and Sec-Fetch-Site (a form, an image or a WebSocket
sent blindly) keep it from causing anything either.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from sandlot.domain.errors import InvalidRequest, SandlotError, Unauthorized
from sandlot.wire.error_codes import status_of

LOOPBACK_HOSTS: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
OPEN_PATHS: Final = frozenset({"/health", "/ready", "/openapi.json"})
# What a key opens on a server that works by tokens: whoever looks after it has no token.
FIGURES_PATHS: Final = frozenset({"/metrics", "/v1/health"})
# Of a browser's Sec-Fetch-Site: who is no browser sends none.
_OWN_SITES: Final = (None, b"same-origin", b"none")


@dataclass(frozen=True, slots=True)
class Refusal:
    status: int
    error: SandlotError


class TokenCheck(Protocol):
    """What tells a token that opens this server from one that does not. Pure, and called for each request."""

    def refusal(self, token: bytes, path: str) -> SandlotError | None:
        """``path`` is decoded, as routes are matched with it. None: the token opens it."""
        ...


class Admission:
    """``allowed_hosts`` None: any, for a server that is meant to be reached by names it does not know.

    With ``tokens`` a bearer's value is one of those, and a key opens the server's figures alone.
    """

    def __init__(
        self,
        api_key: str | None,
        allowed_hosts: Collection[str] | None,
        tokens: TokenCheck | None = None,
    ) -> None:
        self._key = None if api_key is None else _digest(api_key.encode())
        self._tokens = tokens
        self._hosts = None if allowed_hosts is None else {host.lower() for host in allowed_hosts}

    def refusal(self, method: str, path: str, headers: Iterable[tuple[bytes, bytes]]) -> Refusal | None:
        """``method`` is WEBSOCKET for one."""
        hosts: list[bytes] = []
        origin = site = key = bearer = None
        for name, value in headers:
            if name == b"host":
                hosts.append(value)
            elif name == b"origin":
                origin = value
            elif name == b"sec-fetch-site":
                site = value
            elif name == b"x-api-key":
                key = value
            elif name == b"authorization" and value[:7].lower() == b"bearer ":
                key = bearer = value[7:].strip()
        if self._hosts is not None and (len(hosts) != 1 or host_name(hosts[0]) not in self._hosts):
            return Refusal(403, InvalidRequest("this server is not known by that host name"))
        foreign = origin is not None and origin.lower().partition(b"://")[2] not in map(bytes.lower, hosts)
        # Browsers say so themselves, also where a request is too simple to carry an Origin.
        if foreign or site not in _OWN_SITES:
            return Refusal(403, InvalidRequest("requests from pages of another origin are refused"))
        if path in OPEN_PATHS:
            return None
        if self._tokens is not None:
            return self._token_refusal(self._tokens, key, bearer, path)
        if self._key is None:
            return None
        if key is None:
            return Refusal(401, Unauthorized("an API key is needed: Authorization: Bearer …, or X-API-Key"))
        return None if self._is_key(key) else Refusal(401, Unauthorized("this API key is not known here"))

    def _token_refusal(
        self, tokens: TokenCheck, key: bytes | None, bearer: bytes | None, path: str
    ) -> Refusal | None:
        if path in FIGURES_PATHS and key is not None and self._is_key(key):
            return None
        error: SandlotError | None = Unauthorized("a token of the fleet is needed: Authorization: Bearer …")
        if bearer is not None:
            error = tokens.refusal(bearer, path)
        return None if error is None else Refusal(status_of(error), error)

    def _is_key(self, key: bytes) -> bool:
        return self._key is not None and hmac.compare_digest(_digest(key), self._key)


def host_name(header: bytes) -> str:
    """Without the port; an IPv6 address stays in its brackets."""
    text = header.decode("latin-1").lower()
    if text.startswith("["):
        address, bracket, rest = text.partition("]")
        return address + bracket if not rest or rest.startswith(":") else text
    return text.partition(":")[0].removesuffix(".")


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
