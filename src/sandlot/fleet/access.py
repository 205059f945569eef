"""Tokens that let clients go straight to a worker, and let coordinators call workers.

A coordinator signs a token, and a worker verifies it with its public keys alone. So the worker still admits
clients while the directory and the coordinators are down. A session token opens one session, on the
sandbox that the session had when the token was signed. It expires before the fleet gives up on an
unreachable worker, because after that point another worker may own the session.
"""

from __future__ import annotations

import hmac
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from sandlot.domain.callers.principal import ALL_SCOPES, MEMBER, Principal, Scope
from sandlot.domain.errors import NotFound, SandlotError, Unauthorized
from sandlot.domain.ids import is_session_id
from sandlot.domain.service import Access
from sandlot.domain.session import Session
from sandlot.fleet.signing_keys import MEMBER_AUDIENCE, NOT_OURS, SESSION_AUDIENCE, PublicKeys, SigningKey

# The largest clock difference between two members at which a token still works until its expiry.
LEEWAY_S: Final = 5.0
# Renew a member token after this fraction of its lifetime. The rest is longer than any clock skew.
MEMBER_RENEWAL_FRACTION: Final = 0.25
# Verified tokens to cache, so that each signature is verified once, which takes 0.4 ms. The oldest is evicted
# first.
MAX_VERIFIED: Final = 4096
MAX_MEMBER_TOKENS: Final = 4096
# The longest time that a coordinator relies on the last known state of a live worker.
MAX_FRESH_S: Final = 2.0

# The reason in a worker's refusal if the caller's key has ended, for the coordinator to pass on.
KEY_ENDED: Final = "key_ended"
# What the control token opens: the commands that an operator gives to a worker on its own machine.
CONTROL_PATHS: Final = frozenset({"/v1/fleet/drain", "/v1/fleet/undrain"})
_SESSIONS: Final = "/v1/sessions/"


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

    def __init__(self, key: SigningKey, *, lifetime_s: float, clock: Callable[[], float] = time.time) -> None:
        self._key = key
        # The fingerprint of the key.
        (self.signed_with,) = key.public.fingerprints
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
        token = self._key.sign(
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
            token = self._key.sign(claims)
            self._member_tokens[worker_id, principal] = (token, now)
        return token


class TokenGate:
    """Decides which tokens a worker admits. Implements the API's ``TokenCheck``.

    A member token must name ``worker_id``. ``generation_of`` returns the current generation of a
    session on this worker, and None for other sessions. ``key_has_ended`` says whether the key with
    which a caller got its token was revoked or has expired. ``control`` is a secret of this process, for
    the machine's operator. The gate admits requests for unknown sessions, because the service itself
    answers that they do not exist.
    """

    def __init__(
        self,
        keys: PublicKeys,
        *,
        worker_id: str,
        generation_of: Callable[[str], int | None],
        key_has_ended: Callable[[str], bool] = lambda _: False,
        control: bytes | None = None,
        leeway_s: float = LEEWAY_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._keys = keys
        self._worker_id = worker_id
        self._leeway_s = leeway_s
        self._generation_of = generation_of
        self._key_has_ended = key_has_ended
        self._control = control
        self._clock = clock
        self._verified: dict[bytes, Mapping[str, Any]] = {}

    def admit(self, token: bytes, path: str) -> Principal | SandlotError:
        if path in CONTROL_PATHS and self._control and hmac.compare_digest(token, self._control):
            return MEMBER
        claims = self._verified.get(token)
        if claims is None:
            verified = self._keys.verified(token)
            if isinstance(verified, Unauthorized):
                return verified
            claims = verified
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
                caller = _caller(claims)
                return replace(caller, forwarded=True) if isinstance(caller, Principal) else caller
            return Unauthorized("This token is for another worker.")
        if claims["aud"] != SESSION_AUDIENCE:  # such as a list of audiences, which we never sign
            return Unauthorized(NOT_OURS)
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


def _caller(claims: Mapping[str, Any]) -> Principal | SandlotError:
    """The caller that a token names.

    A scope that this version does not know, from a newer coordinator, is left out.
    """
    tenant, scopes = claims.get("tenant"), claims.get("scopes")
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
