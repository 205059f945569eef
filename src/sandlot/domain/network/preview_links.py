"""Links to previews: the token in a link, and the addresses that previews have. Pure.

A preview has a host of its own (``8000-LABEL.preview.example.com``) if the server has a domain for them, and
otherwise a path on the server (``/preview/TOKEN/``). A token says which port of which session it opens, until
when, and through which exposure. Whoever has the secret can make one, so it stays on the server.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self

from sandlot.domain.errors import InvalidRequest, Unauthorized
from sandlot.domain.ids import is_session_id
from sandlot.domain.network.ports import PUBLIC, ExposePort, Exposure, Preview

# The part of the server's paths that belongs to previews.
PREVIEW_PATH: Final = "/preview/"
# The query field that carries the token on the first visit of a preview with a host of its own.
LINK_FIELD: Final = "sandlot_link"

_VERSION: Final = 1
_KEEPS_PREFIX: Final = 1
_IS_PUBLIC: Final = 2
# Version, flags, session, port, exposure, expiry in seconds since the epoch (0 for never).
_CLAIMS: Final = struct.Struct(">BB16sH8sQ")
_MAC_BYTES: Final = 32
_TOKEN_CHARS: Final = (_CLAIMS.size + _MAC_BYTES) * 4 // 3 + 1
_TOKEN: Final = re.compile(rf"[A-Za-z0-9_-]{{{_TOKEN_CHARS}}}")
_SESSION_PREFIX: Final = "ses_"
_LABEL: Final = re.compile(r"([1-9][0-9]{0,4})-([0-9a-f]{32})")
_DOMAIN: Final = re.compile(
    r"(?:(https?)://)?\*((?:\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)+)(?::([0-9]{1,5}))?"
)


@dataclass(frozen=True, slots=True)
class Link:
    """What a token opens.

    session_id, port: where it leads.
    exposure: through which exposure; ``PUBLIC`` for whichever is public.
    expires_at: when it ends, in whole seconds since the epoch; None for never.
    keep_prefix: whether the program gets the whole path.
    """

    session_id: str
    port: int
    exposure: str
    expires_at: int | None = None
    keep_prefix: bool = False


class LinkTokens:
    """Signs and reads tokens. ``secret``: at least 32 random bytes."""

    def __init__(self, secret: bytes, clock: Callable[[], float] = time.time) -> None:
        assert len(secret) >= _MAC_BYTES
        self._secret = secret
        self._clock = clock

    def sign(self, link: Link) -> str:
        public = link.exposure == PUBLIC
        claims = _CLAIMS.pack(
            _VERSION,
            _KEEPS_PREFIX * link.keep_prefix | _IS_PUBLIC * public,
            bytes.fromhex(link.session_id.removeprefix(_SESSION_PREFIX)),
            link.port,
            bytes(8) if public else bytes.fromhex(link.exposure),
            link.expires_at or 0,
        )
        return base64.urlsafe_b64encode(claims + self._mac(claims)).rstrip(b"=").decode()

    def read(self, token: str) -> Link:
        """Raises ``Unauthorized`` if this server did not sign it, or it has expired."""
        if _TOKEN.fullmatch(token) is None:
            raise Unauthorized("This is not a link to a preview.")
        try:
            signed = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        except binascii.Error:
            raise Unauthorized("This is not a link to a preview.") from None
        claims, mac = signed[: _CLAIMS.size], signed[_CLAIMS.size :]
        if not hmac.compare_digest(mac, self._mac(claims)):
            raise Unauthorized("This link was not made by this server, or it was changed.")
        version, flags, session, port, exposure, expires_at = _CLAIMS.unpack(claims)
        if version != _VERSION:
            raise Unauthorized("This link was made by another version of Sandlot.")
        if expires_at and self._clock() >= expires_at:
            raise Unauthorized("This link has expired.")
        return Link(
            _SESSION_PREFIX + session.hex(),
            port,
            PUBLIC if flags & _IS_PUBLIC else exposure.hex(),
            expires_at or None,
            bool(flags & _KEEPS_PREFIX),
        )

    def link_to(self, session_id: str, exposure: Exposure, request: ExposePort) -> Link:
        expires_at = None if request.link_s is None else int(self._clock() + request.link_s) + 1
        through = PUBLIC if exposure.public else exposure.id
        return Link(session_id, exposure.port, through, expires_at, request.keep_prefix)

    def _mac(self, claims: bytes) -> bytes:
        return hmac.digest(self._secret, claims, "sha256")


@dataclass(frozen=True, slots=True)
class PreviewDomain:
    """The hosts of previews.

    scheme: ``https`` or ``http``.
    suffix: what follows the label in a host's name, with the dot before it.
    port: the port in URLs; empty for the scheme's own.
    """

    scheme: str
    suffix: str
    port: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``*.preview.example.com``, which is https, or ``http://*.localhost:8000``."""
        found = _DOMAIN.fullmatch(text.strip().lower())
        if found is None or (found[4] and not 0 < int(found[4]) <= 65535):
            raise InvalidRequest(
                f"{text!r:.80} is not a domain for previews. Use *.preview.example.com, or "
                "http://*.localhost:8000 to try it on your own machine."
            )
        return cls(found[1] or "https", found[2], found[4] or "")

    def origin(self, session_id: str, port: int) -> str:
        label = f"{port}-{session_id.removeprefix(_SESSION_PREFIX)}"
        return f"{self.scheme}://{label}{self.suffix}" + (f":{self.port}" if self.port else "")

    @property
    def authority(self) -> str:
        """What follows a label and its dot in URLs: the domain, and its port if it has one."""
        return self.suffix.removeprefix(".") + (f":{self.port}" if self.port else "")

    def covers(self, host: str) -> bool:
        """Whether a host, in lower case and without its port, is one for previews."""
        return host.endswith(self.suffix)

    def target(self, host: str) -> tuple[str, int] | None:
        """The session and the port that a host stands for; None if it is not the host of a preview."""
        found = _LABEL.fullmatch(host.removesuffix(self.suffix)) if self.covers(host) else None
        if found is None or int(found[1]) > 65535:
            return None
        session_id = _SESSION_PREFIX + found[2]
        return (session_id, int(found[1])) if is_session_id(session_id) else None


def preview_of(
    tokens: LinkTokens, domain: PreviewDomain | None, session_id: str, exposure: Exposure, request: ExposePort
) -> Preview:
    """The preview with its URL. Without a domain, that is only a path on the server."""
    link = tokens.link_to(session_id, exposure, request)
    expires_at = None if link.expires_at is None else float(link.expires_at)
    if domain is None:
        prefix = PREVIEW_PATH + tokens.sign(link)
        return Preview(exposure, prefix + "/", prefix, expires_at)
    url = domain.origin(session_id, exposure.port) + "/"
    if not exposure.public:
        url += f"?{LINK_FIELD}={tokens.sign(link)}"
    return Preview(exposure, url, "", expires_at)
