"""Tokens that let clients go straight to a worker, and let fleet members call each other.

All members share signing keys. A worker verifies a token with these keys alone, so it still admits
clients while the directory and the coordinators are down. A session token opens one session, on the
sandbox that the session had when the token was signed. It expires before the fleet gives up on an
unreachable worker, because after that point another worker may own the session.
"""

from __future__ import annotations

import hmac
import math
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import jwt

from sandlot.domain.callers.principal import ALL_SCOPES, DEFAULT_TENANT, Principal, Scope
from sandlot.domain.errors import InvalidRequest, NotFound, SandlotError, Unauthorized
from sandlot.domain.ids import is_session_id
from sandlot.domain.service import Access
from sandlot.domain.session import Session

ALGORITHM: Final = "HS256"
SESSION_AUDIENCE: Final = "sandlot-session"
MEMBER_AUDIENCE: Final = "sandlot-member"
MIN_SECRET_CHARS: Final = 32
# The largest clock difference between two members at which a token still works until its expiry.
LEEWAY_S: Final = 5.0
# Renew a member token after this fraction of its lifetime. The rest is longer than any clock skew.
MEMBER_RENEWAL_FRACTION: Final = 0.25
# Our tokens have about 400 bytes. Longer ones are refused without parsing.
MAX_TOKEN_BYTES: Final = 4096
# Verified tokens to cache, so that each one is verified once. The oldest is evicted first.
MAX_VERIFIED: Final = 4096
MAX_MEMBER_TOKENS: Final = 4096
# The longest time that a coordinator relies on the last known state of a live worker.
MAX_FRESH_S: Final = 2.0

# The reason in a worker's refusal if the caller's key has ended, for the coordinator to pass on.
KEY_ENDED: Final = "key_ended"
_NOT_OURS: Final = (
    "Invalid token: this fleet did not sign it. Clients must use the coordinator's URL, not a worker's."
)
_SESSIONS: Final = "/v1/sessions/"
_KID: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_SECRET: Final = re.compile(r"[!-+\--~]+")  # printable, no space, no comma


class SigningKeys:
    """The fleet's signing keys, by id. The first key signs and all keys verify.

    This lets an operator rotate keys one by one without downtime.
    """

    def __init__(self, secrets: Mapping[str, str]) -> None:
        if not secrets:
            raise InvalidRequest(
                "SANDLOT_FLEET_KEYS is empty. Write id:secret, and separate several keys with commas."
            )
        self._secrets = dict(secrets)
        self._kid, self._secret = next(iter(self._secrets.items()))

    @classmethod
    def parse(cls, text: str) -> SigningKeys:
        """Parse ``kid:secret[,kid:secret…]``.

        Errors name an entry by its position, because its text may contain a secret.
        """
        secrets: dict[str, str] = {}
        for place, entry in enumerate(text.strip().split(",") if text.strip() else [], start=1):
            kid, colon, secret = entry.strip().partition(":")
            if not colon or _KID.fullmatch(kid) is None:
                raise InvalidRequest(
                    f"Key {place} in SANDLOT_FLEET_KEYS must begin with an id (letters, digits, _ . -) and a "
                    "colon, as in k1:SECRET."
                )
            if len(secret) < MIN_SECRET_CHARS:
                raise InvalidRequest(
                    f"The secret of key {place} in SANDLOT_FLEET_KEYS has fewer than {MIN_SECRET_CHARS} "
                    "characters. To create one: openssl rand -hex 32"
                )
            if _SECRET.fullmatch(secret) is None:
                raise InvalidRequest(
                    f"The secret of key {place} in SANDLOT_FLEET_KEYS must be printable ASCII without spaces."
                )
            if kid in secrets:
                raise InvalidRequest(f"Key {place} in SANDLOT_FLEET_KEYS has the same id as an earlier key.")
            secrets[kid] = secret
        return cls(secrets)

    def __repr__(self) -> str:
        return f"SigningKeys({', '.join(self._secrets)})"

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """One fingerprint per key, the signing key first. Equal keys have equal fingerprints."""
        return tuple(
            f"{kid}:{hmac.digest(secret.encode(), b'sandlot fleet key', 'sha256').hex()[:12]}"
            for kid, secret in self._secrets.items()
        )

    def sign(self, claims: Mapping[str, Any]) -> str:
        """Return a token signed with the first key."""
        return jwt.encode(dict(claims), self._secret, algorithm=ALGORITHM, headers={"kid": self._kid})

    def verified(self, token: bytes) -> Mapping[str, Any] | None:
        """Return the claims if one of these keys signed the token. Does not check the expiry."""
        if len(token) > MAX_TOKEN_BYTES:
            return None
        try:
            secret = self._secrets.get(jwt.get_unverified_header(token).get("kid", ""))
            if secret is None:
                return None
            claims: Mapping[str, Any] = jwt.decode(
                token,
                secret,
                algorithms=[ALGORITHM],
                audience=[SESSION_AUDIENCE, MEMBER_AUDIENCE],
                options={"require": ["aud", "exp"], "verify_exp": False, "verify_iat": False},
            )
        except (jwt.PyJWTError, RecursionError, ValueError, TypeError):
            return None  # the input is untrusted, so any parse failure means "not our token"
        return claims


@dataclass(frozen=True, slots=True)
class TokenTimes:
    """Token durations. A token expires before its session can move to another worker.

    A coordinator signs a token for a worker that was alive at most ``fresh_s`` ago. The session may
    move ``lost_after_s`` after the worker was last alive. ``leeway_s`` counts twice: a worker
    accepts a token for this long after its expiry, and the worker's clock may be behind by as much
    again.
    """

    lifetime_s: float
    leeway_s: float
    fresh_s: float


def token_times(lost_after_s: float) -> TokenTimes:
    leeway_s, fresh_s = min(LEEWAY_S, lost_after_s / 6), min(MAX_FRESH_S, lost_after_s / 6)
    return TokenTimes(lost_after_s - 2 * leeway_s - fresh_s, leeway_s, fresh_s)


class AccessTokens:
    """Signs tokens. ``lifetime_s`` is the lifetime of a token, see ``token_times``."""

    @property
    def signed_with(self) -> str:
        """The fingerprint of the signing key."""
        return self._keys.fingerprints[0]

    def __init__(
        self, keys: SigningKeys, *, lifetime_s: float, clock: Callable[[], float] = time.time
    ) -> None:
        self._keys = keys
        self._lifetime_s = lifetime_s
        self._clock = clock
        # Worker and caller → the token, and when it was signed.
        self._member_tokens: dict[tuple[str, Principal], tuple[str, float]] = {}

    def for_session(
        self, principal: Principal, session: Session, url: str, worker_id: str, *, stale_s: float = 0.0
    ) -> Access | None:
        """Return the caller's access to a session on the worker at ``url``.

        ``stale_s`` says how much older the worker's known state is than ``token_times`` allows for,
        as after a call that took minutes. The token expires that much earlier. Returns None if less
        than half of the lifetime would remain.
        """
        if stale_s > self._lifetime_s / 2:
            return None
        expires_at = round(self._clock() + self._lifetime_s - stale_s, 3)
        token = self._keys.sign(
            {
                "aud": SESSION_AUDIENCE,
                "sub": session.id,
                "gen": session.generation,
                "exp": expires_at,
                **_caller_claims(principal),
            }
        )
        return Access(url, token, expires_at, worker_id)

    def for_member(self, worker_id: str, principal: Principal) -> str:
        """Return a token for a member's calls to this worker, and to no other, in the caller's name.

        A worker that receives the token cannot use it to command the rest of the fleet. The token
        is cached for a while, because it is needed before each request.
        """
        now = self._clock()
        token, signed_at = self._member_tokens.get((worker_id, principal), ("", -math.inf))
        if not 0 <= now - signed_at < self._lifetime_s * MEMBER_RENEWAL_FRACTION:
            if len(self._member_tokens) >= MAX_MEMBER_TOKENS:
                self._member_tokens.clear()
            claims = {
                "aud": MEMBER_AUDIENCE,
                "sub": worker_id,
                "exp": round(now + self._lifetime_s, 3),
                **_caller_claims(principal),
            }
            token = self._keys.sign(claims)
            self._member_tokens[worker_id, principal] = (token, now)
        return token


class TokenGate:
    """Decides which tokens a worker admits. Implements the API's ``TokenCheck``.

    A member token must name ``worker_id``. ``generation_of`` returns the current generation of a
    session on this worker, and None for other sessions. ``key_has_ended`` says whether the key with
    which a caller got its token was revoked or has expired. The gate admits requests for unknown
    sessions, because the service itself answers that they do not exist.
    """

    def __init__(
        self,
        keys: SigningKeys,
        *,
        worker_id: str,
        generation_of: Callable[[str], int | None],
        key_has_ended: Callable[[str], bool] = lambda _: False,
        leeway_s: float = LEEWAY_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._keys = keys
        self._worker_id = worker_id
        self._leeway_s = leeway_s
        self._generation_of = generation_of
        self._key_has_ended = key_has_ended
        self._clock = clock
        self._verified: dict[bytes, Mapping[str, Any]] = {}

    def admit(self, token: bytes, path: str) -> Principal | SandlotError:
        claims = self._verified.get(token)
        if claims is None:
            claims = self._keys.verified(token)
            if claims is None:
                return Unauthorized(_NOT_OURS)
            if len(self._verified) >= MAX_VERIFIED:
                del self._verified[next(iter(self._verified))]
            self._verified[token] = claims
        expires_at = claims["exp"]
        if not _is_number(expires_at) or self._clock() > expires_at + self._leeway_s:
            return Unauthorized("This token has expired. Ask the coordinator for new access.")
        if self._key_has_ended(str(claims.get("key", ""))):
            return Unauthorized(
                "The API key of this token was revoked or has expired.", details={"reason": KEY_ENDED}
            )
        if claims["aud"] == MEMBER_AUDIENCE:
            if claims.get("sub") == self._worker_id:
                caller = _caller(claims, default_tenant=DEFAULT_TENANT)
                return replace(caller, forwarded=True) if isinstance(caller, Principal) else caller
            return Unauthorized("This token is for another worker.")
        if claims["aud"] != SESSION_AUDIENCE:  # such as a list of audiences, which we never sign
            return Unauthorized(_NOT_OURS)
        return self._admit_to_session(claims, path)

    def _admit_to_session(self, claims: Mapping[str, Any], path: str) -> Principal | SandlotError:
        session_id, tenant, generation = claims.get("sub"), claims.get("tenant"), claims.get("gen")
        if (
            not isinstance(session_id, str)
            or not is_session_id(session_id)
            or not isinstance(tenant, str)
            or not tenant
            or type(generation) is not int
        ):
            return Unauthorized("Invalid token: it lacks the fields of a session token.")
        path_id, _, subpath = path.removeprefix(_SESSIONS).partition("/")
        if not path.startswith(_SESSIONS) or path_id != session_id or subpath == "recreate":
            # Only the coordinator decides where a session gets a new sandbox.
            return Unauthorized(
                "This token gives access to one session only, and the request is for something else."
            )
        if path != _SESSIONS + path_id and not {"", ".", ".."}.isdisjoint(subpath.split("/")):
            # No route has such a segment. Refuse it here, so that no later layer can resolve it.
            return NotFound("Nothing exists at this path.")
        if self._generation_of(session_id) not in (None, generation):
            return Unauthorized("The session has a new sandbox. Ask the coordinator for new access.")
        return _caller(claims)


def _caller_claims(principal: Principal) -> dict[str, Any]:
    """What a token says about the caller. A caller with all scopes is the common case, and kept short."""
    claims: dict[str, Any] = {"tenant": principal.tenant}
    if principal.scopes != ALL_SCOPES:
        claims["scopes"] = sorted(principal.scopes)
    if principal.key_id:
        claims["key"] = principal.key_id
    if principal.subject:
        claims["for"] = principal.subject
    return claims


def _caller(claims: Mapping[str, Any], default_tenant: str | None = None) -> Principal | SandlotError:
    """The caller that a token names.

    A scope that this version does not know, from a newer coordinator, is left out. Members of version 0.1
    name no tenant in their own tokens, and act for the only one that they know: ``default_tenant``.
    """
    tenant, scopes = claims.get("tenant", default_tenant), claims.get("scopes")
    key_id, subject = claims.get("key", ""), claims.get("for", "")
    if (
        not isinstance(tenant, str)
        or not isinstance(key_id, str)
        or not isinstance(subject, str)
        or not (scopes is None or isinstance(scopes, list))
    ):
        return Unauthorized("Invalid token: it does not say whom it was issued to.")
    known = ALL_SCOPES if scopes is None else frozenset(scope for scope in Scope if scope.value in scopes)
    return Principal(tenant, known, key_id, subject)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
