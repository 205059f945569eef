"""Access tokens of single sandboxes, and the signatures that E2B's SDK makes of them for links to files.

A token opens one session for the key that asked for it. It is derived from the server's secret, so the server
keeps no list of tokens, and every server with the same secret accepts it. It ends with its key.

E2B's SDK has two kinds. One is for all of the sandbox. The other one is for its ports, and programs that
listen there may get to see it. So it opens the code interpreter's port only.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

_TOKEN: Final = re.compile(r"(sbt|sbp|sbu)_([a-z2-7]{12}|owner)_([0-9a-f]{64})")
# Stands for the server's own key, which has no id.
_OWNER: Final = "owner"
_SIGNATURE_PREFIX: Final = "v1_"

Operation = Literal["read", "write"]


class TokenKind(StrEnum):
    """What a token opens: all of a sandbox, the code interpreter's port of one, or one upload for a build.

    An upload's token is issued for the upload in the place of a session.
    """

    SANDBOX = "sbt"
    PORT = "sbp"
    UPLOAD = "sbu"


class SandboxTokens:
    """``secret``: at least 32 random bytes. ``server_key``: its tokens end when it changes."""

    def __init__(self, secret: bytes, server_key: str | None) -> None:
        assert len(secret) >= 32
        self._secret = secret
        self._server_key = hashlib.sha256((server_key or "").encode()).digest()

    def issue(self, session_id: str, key_id: str, kind: TokenKind = TokenKind.SANDBOX) -> str:
        """``key_id``: of the key that asks; empty for the server's own."""
        return f"{kind}_{key_id or _OWNER}_{self._mac(session_id, key_id, kind)}"

    def key_of(self, session_id: str, token: str, kind: TokenKind = TokenKind.SANDBOX) -> str | None:
        """The id of the key that the token was issued to; None if it does not open this session."""
        match = _TOKEN.fullmatch(token)
        if match is None or match[1] != kind:
            return None
        key_id = "" if match[2] == _OWNER else match[2]
        return key_id if hmac.compare_digest(match[3], self._mac(session_id, key_id, kind)) else None

    def _mac(self, session_id: str, key_id: str, kind: TokenKind) -> str:
        salt = b"" if key_id else self._server_key
        text = b"\0".join((kind.encode(), session_id.encode(), key_id.encode(), salt))
        return hmac.new(self._secret, text, "sha256").hexdigest()


@dataclass(frozen=True, slots=True)
class SignedLink:
    """What a link to a file says, and the signature that has to fit.

    expires_at: when it ends, in seconds since the epoch, as the link says it; None for never.
    """

    path: str
    operation: Operation
    user: str
    signature: str
    expires_at: str | None = None

    def has_expired(self, now: float) -> bool:
        if self.expires_at is None:
            return False
        return not (
            self.expires_at.isascii() and self.expires_at.isdigit() and now < int(self.expires_at[:12])
        )

    def fits(self, token: str) -> bool:
        """Whether somebody who has this token signed the link."""
        parts = [self.path, self.operation, self.user, token]
        if self.expires_at is not None:
            parts.append(self.expires_at)
        try:
            digest = hashlib.sha256(":".join(parts).encode()).digest()
        except UnicodeEncodeError:
            return False
        expected = _SIGNATURE_PREFIX + base64.b64encode(digest).rstrip(b"=").decode()
        return hmac.compare_digest(expected.encode(), self.signature.encode("utf-8", "surrogateescape"))
