"""Decides who makes a request, or why it may not enter: by its key or token, its Host and its origin. Pure.

Every path needs a key or token, except a few named ones. The server uses no cookies and no CORS, so
a foreign page cannot read a response. The checks of Host (DNS rebinding), Origin and Sec-Fetch-Site
(a form, an image or a WebSocket that a page sends blindly) also keep it from causing any effect.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from starlette.types import Scope

from sandlot.domain.callers.principal import MEMBER, NOBODY, OWNER, Principal
from sandlot.domain.e2b.names import key_from_e2b
from sandlot.domain.errors import InvalidRequest, SandlotError, Unauthorized
from sandlot.wire.error_codes import status_of

LOOPBACK_HOSTS: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
OPEN_PATHS: Final = frozenset({"/health", "/ready", "/openapi.json"})
# What the API key opens on a server that works with tokens: its operator has no token.
METRICS_PATHS: Final = frozenset({"/metrics", "/v1/health"})
# Accepted values of Sec-Fetch-Site, which browsers send. Other clients send none.
_ALLOWED_FETCH_SITES: Final = (None, b"same-origin", b"none")
# What a page in a browser offers to open a WebSocket, where it can set no other header: the name that we
# accept, and its key. The key is in base64url without padding: not every character of a key may stand there.
SUBPROTOCOL: Final = "sandlot"
KEY_SUBPROTOCOL: Final = "sandlot.key."
_NOT_FOR_CLIENTS: Final = (
    "This is a fleet worker. It accepts only tokens from its coordinator, not API keys. Use the "
    "coordinator's URL."
)


@dataclass(frozen=True, slots=True)
class Refusal:
    """``key``: a key or token that opens nothing yet. It may be newer than what this process knows."""

    status: int
    error: SandlotError
    key: bytes = field(default=b"", repr=False)


class TokenCheck(Protocol):
    """Decides which tokens open this server. Pure, and called for each request."""

    def admit(self, token: bytes, path: str) -> Principal | SandlotError:
        """Whom the token was issued to, or why it does not open ``path``, which is decoded as for routing."""
        ...


class CallerCheck(Protocol):
    """Decides which callers come in, beside the holder of the server's own key: by one kind of credential."""

    def admit(self, text: bytes) -> Principal | SandlotError | None:
        """Whose credential this is, or why it opens nothing. None if it is of another kind."""
        ...

    async def may_know_later(self, text: bytes) -> bool:
        """Learn of new credentials. Returns whether it is worth asking ``admit`` again."""
        ...


class Admission:
    """Checks each request's host, origin and credentials.

    ``allowed_hosts`` None accepts any Host, for a server whose clients use names that it cannot
    know. With ``tokens``, the bearer value must be a token, and the API key opens only the server's
    metrics.
    """

    def __init__(
        self,
        api_key: str | None,
        allowed_hosts: Collection[str] | None,
        tokens: TokenCheck | None = None,
        callers: Sequence[CallerCheck] = (),
    ) -> None:
        self._key = None if api_key is None else _digest(api_key.encode())
        self._tokens = tokens
        self._callers = callers
        self._hosts = None if allowed_hosts is None else {host.lower() for host in allowed_hosts}

    def admit_request(self, scope: Scope) -> Principal | Refusal:
        return self.admit(scope.get("method", "WEBSOCKET"), scope["path"], scope["headers"])

    def admit(self, method: str, path: str, headers: Iterable[tuple[bytes, bytes]]) -> Principal | Refusal:
        """Who makes the request, or why it is refused. ``method`` is WEBSOCKET for a WebSocket."""
        headers = list(headers)
        refusal = self.refusal_of_site(headers)
        if refusal is not None:
            return refusal
        key = bearer = None
        for name, value in headers:
            if name == b"x-api-key":
                key = key_from_e2b(value)
            elif name == b"authorization" and value[:7].lower() == b"bearer ":
                key = bearer = value[7:].strip()
        if path in OPEN_PATHS:
            return NOBODY
        if key is None and method == "WEBSOCKET":
            key = bearer = key_in_subprotocols(headers)
        if self._tokens is not None:
            return self._admit_token(self._tokens, key, bearer, path)
        if self._key is None:
            return OWNER
        if key is None:
            return Refusal(
                401, Unauthorized("Missing API key. Send Authorization: Bearer KEY, or X-API-Key: KEY.")
            )
        if self._is_key(key):
            return OWNER
        for caller in self._callers:
            admitted = caller.admit(key)
            if isinstance(admitted, Principal):
                return admitted
            if admitted is not None:
                return Refusal(status_of(admitted), admitted, key)
        return Refusal(401, Unauthorized("Invalid API key."))

    def refusal_of_site(self, headers: Iterable[tuple[bytes, bytes]]) -> Refusal | None:
        """Why the request's Host and the page that it comes from are refused; None if they are not."""
        hosts: list[bytes] = []
        origin = site = None
        for name, value in headers:
            if name == b"host":
                hosts.append(value)
            elif name == b"origin":
                origin = value
            elif name == b"sec-fetch-site":
                site = value
        if self._hosts is not None and (len(hosts) != 1 or host_name(hosts[0]) not in self._hosts):
            return Refusal(
                403, InvalidRequest("Unknown host name. Add it to SANDLOT_ALLOWED_HOSTS on the server.")
            )
        foreign = origin is not None and origin.lower().partition(b"://")[2] not in map(bytes.lower, hosts)
        # Browsers send Sec-Fetch-Site even where a request is too simple to carry an Origin.
        if foreign or site not in _ALLOWED_FETCH_SITES:
            return Refusal(403, InvalidRequest("Cross-origin requests are not allowed."))
        return None

    async def may_admit_later(self, refusal: Refusal) -> bool:
        """Whether it is worth asking again: the key was unknown, and this process has learned of new ones."""
        if not refusal.key:
            return False
        return any([await caller.may_know_later(refusal.key) for caller in self._callers])

    def is_credential(self, authorization: bytes) -> bool:
        """Whether an Authorization header is for this server, valid or not, and so for no program."""
        if authorization[:7].lower() != b"bearer ":
            return False
        key = authorization[7:].strip()
        return self._is_key(key) or any(caller.admit(key) is not None for caller in self._callers)

    def _admit_token(
        self, tokens: TokenCheck, key: bytes | None, bearer: bytes | None, path: str
    ) -> Principal | Refusal:
        if path in METRICS_PATHS and key is not None and self._is_key(key):
            return MEMBER
        if bearer is None:
            return Refusal(401, Unauthorized(_NOT_FOR_CLIENTS))
        admitted = tokens.admit(bearer, path)
        return admitted if isinstance(admitted, Principal) else Refusal(status_of(admitted), admitted)

    def _is_key(self, key: bytes) -> bool:
        return self._key is not None and hmac.compare_digest(_digest(key), self._key)


def key_in_subprotocols(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """The key that a browser sends with a WebSocket; None if there is none that can be read."""
    offered = [
        name.strip()
        for header, value in headers
        if header == b"sec-websocket-protocol"
        for name in value.split(b",")
    ]
    prefix = KEY_SUBPROTOCOL.encode()
    keys = [name.removeprefix(prefix) for name in offered if name.startswith(prefix)]
    if len(keys) != 1:
        return None
    try:
        return base64.b64decode(keys[0] + b"=" * (-len(keys[0]) % 4), b"-_", validate=True)
    except binascii.Error:
        return None


def host_name(header: bytes) -> str:
    """The Host header's name without its port. An IPv6 address keeps its brackets."""
    text = header.decode("latin-1").lower()
    if text.startswith("["):
        address, bracket, rest = text.partition("]")
        return address + bracket if not rest or rest.startswith(":") else text
    return text.partition(":")[0].removesuffix(".")


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
