"""Callers with a token of an OpenID Connect issuer. Its claims say who they are and what they may do.

The issuer's keys are in memory, so that no request waits for the issuer. They are read again every hour, and
when a token names a key that is not known yet, as after a rotation.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import cryptography  # noqa: F401  without it PyJWT knows no public keys, and says so only token by token
import httpx
import jwt
import msgspec
import structlog

from sandlot.domain.background_tasks import BackgroundTasks
from sandlot.domain.callers.principal import Principal, Scope, check_tenant
from sandlot.domain.errors import InvalidRequest, SandlotError, Unauthorized, Unavailable

log = structlog.get_logger("sandlot.oidc")

# Signatures with a public key. With a shared secret (HS256), whoever can verify a token could make one.
ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
# The largest clock difference to the issuer.
LEEWAY_S: Final = 30.0
REFRESH_EVERY_S: Final = 3600.0
# The least time between two readings for unknown keys, however many tokens name one.
REFRESH_AT_MOST_EVERY_S: Final = 10.0
FETCH_WITHIN_S: Final = 5.0
MAX_DOCUMENT_BYTES: Final = 256 * 1024
MAX_TOKEN_BYTES: Final = 16 * 1024
# Verified tokens to remember, so that each is verified once. The oldest is forgotten first.
MAX_VERIFIED: Final = 4096
_TOKEN: Final = re.compile(rb"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class Issuer:
    """``tenant_claim`` names the claim with the caller's tenant.

    ``scope_claim`` names the one with its scopes: a list, or names with spaces between. Scopes that are
    not ours are ignored.
    """

    url: str
    audience: str
    tenant_claim: str = "tenant"
    scope_claim: str = "scope"


class OidcTokens:
    """Admits callers by their tokens. Open it before use."""

    def __init__(self, issuer: Issuer) -> None:
        self._issuer = issuer
        self._keys: dict[str, jwt.PyJWK] = {}
        self._verified: dict[bytes, Mapping[str, Any]] = {}
        self._loaded = False
        self._reading = asyncio.Lock()
        self._read_at = -REFRESH_AT_MOST_EVERY_S
        self._background = BackgroundTasks()

    async def open(self) -> None:
        """Read the issuer's keys and keep them fresh. If the issuer is unreachable, they come later."""
        await self._read()
        self._background.start(self._refresh(), "keep the issuer's keys fresh")

    async def close(self) -> None:
        await self._background.cancel()

    # --- requests -----------------------------------------------------------------------------

    def admit(self, text: bytes) -> Principal | SandlotError | None:
        if not _is_token(text):
            return None
        if not self._loaded:
            return Unavailable("The server cannot read its issuer's keys yet. Retry.", retry_after_s=1.0)
        claims = self._verified.get(text)
        if claims is None:
            try:
                claims = self._verify(text)
            except jwt.ExpiredSignatureError:
                return Unauthorized("This token has expired. Get a new one from your issuer.")
            except jwt.PyJWTError as error:
                return Unauthorized(f"Invalid token: {error}.")
            except (ValueError, TypeError, RecursionError, KeyError):
                return Unauthorized("Invalid token: it cannot be read.")
            if len(self._verified) >= MAX_VERIFIED:
                del self._verified[next(iter(self._verified))]
            self._verified[text] = claims
        if time.time() > claims["exp"] + LEEWAY_S:
            return Unauthorized("This token has expired. Get a new one from your issuer.")
        return self._principal(claims)

    async def may_know_later(self, text: bytes) -> bool:
        """Whether it is worth asking ``admit`` again: the token's key was unknown and has been found."""
        if not _is_token(text) or self._knows_key_of(text):
            return False
        async with self._reading:
            if time.monotonic() - self._read_at >= REFRESH_AT_MOST_EVERY_S:
                await self._read()
        return self._knows_key_of(text)

    def _verify(self, text: bytes) -> Mapping[str, Any]:
        key = self._keys.get(str(jwt.get_unverified_header(text).get("kid")))
        if key is None:
            raise jwt.InvalidKeyError("the issuer has no key with this id")
        claims: Mapping[str, Any] = jwt.decode(
            text,
            key,
            algorithms=ALGORITHMS,
            audience=self._issuer.audience,
            issuer=self._issuer.url,
            leeway=LEEWAY_S,
            options={"require": ["exp", "iss", "aud", "sub"]},
        )
        if not isinstance(claims["exp"], int | float):
            raise jwt.DecodeError("its expiry is not a number")
        return claims

    def _principal(self, claims: Mapping[str, Any]) -> Principal | SandlotError:
        tenant, scopes = claims.get(self._issuer.tenant_claim), claims.get(self._issuer.scope_claim, "")
        try:
            if not isinstance(tenant, str):
                raise InvalidRequest("It is missing.")
            check_tenant(tenant)
        except InvalidRequest as error:
            claim = self._issuer.tenant_claim
            return Unauthorized(f"The token's claim {claim} is not a tenant. {error.message}")
        names = scopes.split() if isinstance(scopes, str) else scopes
        if not isinstance(names, list):
            return Unauthorized(f"The token's claim {self._issuer.scope_claim} is neither a list nor text.")
        granted = frozenset(scope for scope in Scope if scope.value in names)
        return Principal(tenant, granted, subject=str(claims["sub"])[:200], expires_at=claims["exp"])

    def _knows_key_of(self, text: bytes) -> bool:
        try:
            return str(jwt.get_unverified_header(text).get("kid")) in self._keys
        except (jwt.PyJWTError, ValueError, RecursionError):
            return True  # nothing to find for what is no token

    # --- the issuer ---------------------------------------------------------------------------

    async def _refresh(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_EVERY_S if self._loaded else REFRESH_AT_MOST_EVERY_S)
            async with self._reading:
                await self._read()

    async def _read(self) -> None:
        self._read_at = time.monotonic()
        try:
            async with httpx.AsyncClient(timeout=FETCH_WITHIN_S, trust_env=False) as http:
                described = await _document(
                    http, self._issuer.url.rstrip("/") + "/.well-known/openid-configuration"
                )
                if described.get("issuer") != self._issuer.url:
                    raise ValueError(f"the document is of another issuer, {described.get('issuer')!r:.200}")
                found = await _document(http, str(described["jwks_uri"]))
            keys = {
                key.key_id: key
                for key in jwt.PyJWKSet.from_dict(found).keys
                if key.key_id and key.public_key_use in (None, "sig")
            }
        except (
            httpx.HTTPError,
            httpx.InvalidURL,
            jwt.PyJWTError,
            msgspec.MsgspecError,
            ValueError,
            KeyError,
            TypeError,
        ) as error:
            log.warning("cannot read the issuer's keys; the known ones go on working", error=str(error)[:300])
            return
        if set(keys) != set(self._keys):
            self._verified.clear()  # a key that is gone verifies nothing any more
        self._keys, self._loaded = keys, True


async def _document(http: httpx.AsyncClient, url: str) -> dict[str, Any]:
    async with http.stream("GET", url) as response:
        response.raise_for_status()
        body = bytearray()
        async for piece in response.aiter_bytes():
            body += piece
            if len(body) > MAX_DOCUMENT_BYTES:
                raise ValueError(f"{url} has more than {MAX_DOCUMENT_BYTES} bytes")
    document = msgspec.json.decode(body)
    if not isinstance(document, dict):
        raise ValueError(f"{url} is no JSON object")
    return document


def _is_token(text: bytes) -> bool:
    return len(text) <= MAX_TOKEN_BYTES and _TOKEN.fullmatch(text) is not None
