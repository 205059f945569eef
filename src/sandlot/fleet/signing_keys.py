"""The fleet's keys: Ed25519 pairs. A coordinator signs with a private key, workers verify with public ones.

So nobody can make a token with what is on a worker. Each pair has an id, which a token names, so that an
operator can replace a pair without downtime: first on the workers, beside the old one.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Mapping
from typing import Any, Final, Literal

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from sandlot.domain.errors import InvalidRequest, Unauthorized

ALGORITHM: Final = "EdDSA"
SESSION_AUDIENCE: Final = "sandlot-session"
MEMBER_AUDIENCE: Final = "sandlot-member"
# Our tokens have about 400 bytes. Longer ones are refused without parsing.
MAX_TOKEN_BYTES: Final = 4096
PRIVATE_VARIABLE: Final = "SANDLOT_FLEET_PRIVATE_KEY"
PUBLIC_VARIABLE: Final = "SANDLOT_FLEET_PUBLIC_KEYS"

_ID: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
# 32 bytes, in the alphabet of JSON Web Keys (RFC 8037).
_KEY: Final = re.compile(r"(private|public)\.([A-Za-z0-9_-]{43})")
NOT_OURS: Final = (
    "Invalid token: this fleet did not sign it. Clients must use the coordinator's URL, not a worker's."
)
_OF_0_2: Final = (
    "A coordinator of version 0.2 or older signed this token, with a secret that all members shared. Upgrade "
    "the coordinator and give it a private key: docs/howto/fleet-operations.md#keys."
)

Kind = Literal["private", "public"]


class SigningKey:
    """A coordinator's private key. Its text is ``id:private.KEY``."""

    def __init__(self, kid: str, key: Ed25519PrivateKey) -> None:
        self.kid = kid
        self._key = key

    @classmethod
    def generate(cls, kid: str) -> SigningKey:
        if _ID.fullmatch(kid) is None:
            raise InvalidRequest(f"Invalid key id {kid!r:.80}. Use 1-64 letters, digits and _ . -")
        return cls(kid, Ed25519PrivateKey.generate())

    @classmethod
    def parse(cls, text: str) -> SigningKey:
        keys = _parse(text, "private", PRIVATE_VARIABLE)
        if len(keys) > 1:
            raise InvalidRequest(
                f"{PRIVATE_VARIABLE} has several keys, and a coordinator signs with one. Only workers have "
                "several, while you replace a key."
            )
        ((kid, raw),) = keys.items()
        return cls(kid, Ed25519PrivateKey.from_private_bytes(raw))

    def __repr__(self) -> str:
        return f"SigningKey({self.kid})"

    @property
    def text(self) -> str:
        """The private key as a setting. Secret."""
        return f"{self.kid}:private.{_encode(self._key.private_bytes_raw())}"

    @property
    def public(self) -> PublicKeys:
        """What workers need to verify this key's tokens."""
        return PublicKeys({self.kid: self._key.public_key()})

    def derived(self, purpose: bytes) -> bytes:
        """A secret for another purpose, which only holders of the private key can derive."""
        return hmac.digest(self._key.private_bytes_raw(), purpose, "sha256")

    def sign(self, claims: Mapping[str, Any]) -> str:
        return jwt.encode(dict(claims), self._key, algorithm=ALGORITHM, headers={"kid": self.kid})


class PublicKeys:
    """A worker's public keys, by id. Their text is ``id:public.KEY[,id:public.KEY…]``."""

    def __init__(self, keys: Mapping[str, Ed25519PublicKey]) -> None:
        self._keys = dict(keys)

    @classmethod
    def parse(cls, text: str) -> PublicKeys:
        keys = _parse(text, "public", PUBLIC_VARIABLE)
        return cls({kid: Ed25519PublicKey.from_public_bytes(raw) for kid, raw in keys.items()})

    def __repr__(self) -> str:
        return f"PublicKeys({', '.join(self._keys)})"

    @property
    def text(self) -> str:
        return ",".join(f"{kid}:public.{_encode(key.public_bytes_raw())}" for kid, key in self._keys.items())

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """One short name per key. Equal keys have equal fingerprints, on coordinators and workers."""
        return tuple(
            f"{kid}:{hashlib.sha256(key.public_bytes_raw()).hexdigest()[:12]}"
            for kid, key in self._keys.items()
        )

    def verified(self, token: bytes) -> Mapping[str, Any] | Unauthorized:
        """Return the claims if one of these keys signed the token. Does not check the expiry."""
        if len(token) > MAX_TOKEN_BYTES:
            return Unauthorized(NOT_OURS)
        try:
            header = jwt.get_unverified_header(token)
            kid = header.get("kid")
            key = self._keys.get(kid) if isinstance(kid, str) else None
            if header.get("alg") != ALGORITHM or key is None:
                return _why_not(header)
            claims: Mapping[str, Any] = jwt.decode(
                token,
                key,
                algorithms=[ALGORITHM],
                audience=[SESSION_AUDIENCE, MEMBER_AUDIENCE],
                options={"require": ["aud", "exp"], "verify_exp": False, "verify_iat": False},
            )
        except (jwt.PyJWTError, RecursionError, ValueError, TypeError):
            # The input is untrusted, so any parse failure means "not our token".
            return Unauthorized(NOT_OURS)
        return claims


def _why_not(header: Mapping[str, Any]) -> Unauthorized:
    """Why a token that no key of ours can have signed is refused, as far as its header tells."""
    kid, algorithm = header.get("kid"), header.get("alg")
    if not isinstance(kid, str) or _ID.fullmatch(kid) is None:
        return Unauthorized(NOT_OURS)
    if algorithm == "HS256":
        return Unauthorized(_OF_0_2)
    if algorithm != ALGORITHM:
        return Unauthorized(NOT_OURS)
    return Unauthorized(
        f"This worker does not have the public key {kid} that belongs to this token. Add it to "
        f"{PUBLIC_VARIABLE} on the worker and restart the worker."
    )


def _parse(text: str, wanted: Kind, variable: str) -> dict[str, bytes]:
    """Errors name an entry by its position, because its text may contain a secret."""
    keys: dict[str, bytes] = {}
    if not text.strip():
        raise InvalidRequest(f"{variable} is empty. To create a pair of keys: sandlot fleet keygen")
    for place, entry in enumerate(text.strip().split(","), start=1):
        kid, _, rest = entry.strip().partition(":")
        key = _KEY.fullmatch(rest)
        if _ID.fullmatch(kid) is None or key is None:
            raise InvalidRequest(
                f"Key {place} in {variable} must look like k1:{wanted}.KEY, as `sandlot fleet keygen` prints "
                "it. The secrets that members shared in version 0.2 no longer work: "
                "docs/howto/fleet-operations.md#keys."
            )
        if key[1] != wanted:
            raise _wrong_kind(place, wanted, variable)
        if kid in keys:
            raise InvalidRequest(f"Key {place} in {variable} has the same id as an earlier key.")
        keys[kid] = base64.urlsafe_b64decode(key[2] + "=")
    return keys


def _wrong_kind(place: int, wanted: Kind, variable: str) -> InvalidRequest:
    if wanted == "public":
        return InvalidRequest(
            f"Key {place} in {variable} is a private key, and a worker only verifies tokens. Give it the "
            "public key of the pair, and keep the private key on the coordinators."
        )
    return InvalidRequest(
        f"Key {place} in {variable} is a public key, and a coordinator signs tokens. Give it the private key "
        "of the pair."
    )


def _encode(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
