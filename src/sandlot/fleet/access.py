"""Tokens: what lets a client come straight to a worker, and members of the fleet speak to one another.

All members share signing keys. A worker checks a token with them alone, without asking anybody, so it admits
its clients also while directory and coordinators are away. A session's token opens that session on the
sandbox that it had when the token was made, and lives no longer than a worker that is gone keeps its
sessions: after that, another worker may have them.
"""

from __future__ import annotations

import hmac
import math
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import jwt
import msgspec
from jwt.utils import base64url_encode

from sandlot.domain.errors import InvalidRequest, NotFound, SandlotError, Unauthorized
from sandlot.domain.ids import is_session_id
from sandlot.domain.service import Access
from sandlot.domain.session import Session

ALGORITHM: Final = "HS256"
SESSION_AUDIENCE: Final = "sandlot-session"
MEMBER_AUDIENCE: Final = "sandlot-member"
MIN_SECRET_CHARS: Final = 32
# How far the clocks of two members may be apart without a token being refused at its end, at most.
LEEWAY_S: Final = 5.0
# A member's token is made anew after this part of its life: what remains outweighs clocks that differ.
MEMBER_RENEWAL: Final = 0.25
# Ours have some 400. What is longer is not read at all.
MAX_TOKEN_BYTES: Final = 4096
# Tokens that were verified and are not verified again; those seen first are forgotten.
MAX_VERIFIED: Final = 4096
MAX_MEMBERS: Final = 4096
# Seconds for which a coordinator believes what it was last told of a living worker, at most.
MAX_FRESH_S: Final = 2.0

_SESSIONS: Final = "/v1/sessions/"
_KID: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_SECRET: Final = re.compile(r"[!-+\--~]+")  # printable, no space, no comma


class SigningKeys:
    """By their id. The first signs, all verify: so keys are exchanged one by one, without a pause."""

    def __init__(self, secrets: Mapping[str, str]) -> None:
        if not secrets:
            raise InvalidRequest("a fleet needs a signing key: kid:secret, and more behind commas")
        self._secrets = dict(secrets)
        kid, secret = next(iter(self._secrets.items()))
        self._head = base64url_encode(msgspec.json.encode({"alg": ALGORITHM, "typ": "JWT", "kid": kid}))
        self._secret = secret.encode()

    @classmethod
    def parse(cls, text: str) -> SigningKeys:
        """``kid:secret[,kid:secret…]``. What is wrong is named by its place: it may be a secret itself."""
        secrets: dict[str, str] = {}
        for place, entry in enumerate(text.strip().split(",") if text.strip() else [], start=1):
            kid, colon, secret = entry.strip().partition(":")
            if not colon or _KID.fullmatch(kid) is None:
                raise InvalidRequest(
                    f"signing key {place} does not begin with an id of letters, digits, _ . - and a colon"
                )
            if len(secret) < MIN_SECRET_CHARS:
                raise InvalidRequest(
                    f"the secret of signing key {place} has fewer than {MIN_SECRET_CHARS} characters;"
                    " `openssl rand -hex 32` makes a good one"
                )
            if _SECRET.fullmatch(secret) is None:
                raise InvalidRequest(
                    f"the secret of signing key {place} is not printable ASCII without spaces"
                )
            if kid in secrets:
                raise InvalidRequest(f"signing key {place} has the id of one before it")
            secrets[kid] = secret
        return cls(secrets)

    def __repr__(self) -> str:
        return f"SigningKeys({', '.join(self._secrets)})"

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """One for each key, the signing one first: members that have the same key have the same."""
        return tuple(
            f"{kid}:{hmac.digest(secret.encode(), b'sandlot fleet key', 'sha256').hex()[:12]}"
            for kid, secret in self._secrets.items()
        )

    def sign(self, claims: Mapping[str, Any]) -> str:
        """As ``jwt.encode``, which looks at the key anew each time and takes three times as long: every
        create waits for it.
        """
        signed = self._head + b"." + base64url_encode(msgspec.json.encode(claims))
        mac = hmac.digest(self._secret, signed, "sha256")
        return (signed + b"." + base64url_encode(mac)).decode()

    def verified(self, token: bytes) -> Mapping[str, Any] | None:
        """The claims of a token that one of these keys has signed; whether it is in time is not looked at."""
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
            return None  # strangers choose what is parsed here
        return claims


@dataclass(frozen=True, slots=True)
class TokenTimes:
    """A token that was given for a worker which was alive, as far as a coordinator knew (``fresh_s``), is
    over before the session may be on another worker, ``lost_after_s`` later. ``leeway_s`` counts twice: a
    worker takes a token for so long after its end, and the worker's clock may be behind by as much again.
    """

    lifetime_s: float
    leeway_s: float
    fresh_s: float


def token_times(lost_after_s: float) -> TokenTimes:
    leeway_s, fresh_s = min(LEEWAY_S, lost_after_s / 6), min(MAX_FRESH_S, lost_after_s / 6)
    return TokenTimes(lost_after_s - 2 * leeway_s - fresh_s, leeway_s, fresh_s)


class AccessTokens:
    """Makes tokens. ``lifetime_s``: of a session's, see ``token_times``."""

    @property
    def signed_with(self) -> str:
        """The fingerprint of the key."""
        return self._keys.fingerprints[0]

    def __init__(
        self, keys: SigningKeys, *, lifetime_s: float, clock: Callable[[], float] = time.time
    ) -> None:
        self._keys = keys
        self._lifetime_s = lifetime_s
        self._clock = clock
        self._members: dict[str, tuple[str, float]] = {}  # worker → the token, and when it was made

    def for_session(
        self, session: Session, url: str, worker_id: str, *, older_s: float = 0.0
    ) -> Access | None:
        """``url``: where the worker that has the session is reached. ``older_s``: by so much what is known of
        it is older than ``token_times`` allows for, as after a call that took minutes; the token ends so much
        earlier. None where little would be left of it.
        """
        if older_s > self._lifetime_s / 2:
            return None
        expires_at = round(self._clock() + self._lifetime_s - older_s, 3)
        token = self._keys.sign(
            {
                "aud": SESSION_AUDIENCE,
                "sub": session.id,
                "tenant": session.tenant,
                "gen": session.generation,
                "exp": expires_at,
            }
        )
        return Access(url, token, expires_at, worker_id)

    def for_member(self, worker_id: str) -> str:
        """To that worker, and to no other: who receives it there must not command the rest of the fleet. The
        same one for a while: it is asked for before each request.
        """
        now = self._clock()
        token, made_at = self._members.get(worker_id, ("", -math.inf))
        if not 0 <= now - made_at < self._lifetime_s * MEMBER_RENEWAL:
            if len(self._members) >= MAX_MEMBERS:
                self._members.clear()
            claims = {"aud": MEMBER_AUDIENCE, "sub": worker_id, "exp": round(now + self._lifetime_s, 3)}
            token = self._keys.sign(claims)
            self._members[worker_id] = (token, now)
        return token


class TokenGate:
    """Who may come into a worker. Implements the API's ``TokenCheck``.

    ``worker_id``: whom a member's token must be for. ``generation_of``: the present generation of a session
    that this worker has, None for others. Those pass: the service says itself that there is no such session.
    """

    def __init__(
        self,
        keys: SigningKeys,
        *,
        worker_id: str,
        generation_of: Callable[[str], int | None],
        leeway_s: float = LEEWAY_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._keys = keys
        self._worker_id = worker_id
        self._leeway_s = leeway_s
        self._generation_of = generation_of
        self._clock = clock
        self._verified: dict[bytes, Mapping[str, Any]] = {}

    def refusal(self, token: bytes, path: str) -> SandlotError | None:
        claims = self._verified.get(token)
        if claims is None:
            claims = self._keys.verified(token)
            if claims is None:
                return Unauthorized("this is not a token of this fleet")
            if len(self._verified) >= MAX_VERIFIED:
                del self._verified[next(iter(self._verified))]
            self._verified[token] = claims
        expires_at = claims["exp"]
        if not _is_number(expires_at) or self._clock() > expires_at + self._leeway_s:
            return Unauthorized("this token's time is over; ask the coordinator for new access")
        if claims["aud"] == MEMBER_AUDIENCE:
            if claims.get("sub") == self._worker_id:
                return None
            return Unauthorized("this token is for another worker")
        if claims["aud"] != SESSION_AUDIENCE:  # a list of several is nothing that we make
            return Unauthorized("this is not a token of this fleet")
        return self._session_refusal(claims, path)

    def _session_refusal(self, claims: Mapping[str, Any], path: str) -> SandlotError | None:
        session_id, tenant, generation = claims.get("sub"), claims.get("tenant"), claims.get("gen")
        if (
            not isinstance(session_id, str)
            or not is_session_id(session_id)
            or not isinstance(tenant, str)
            or not tenant
            or type(generation) is not int
        ):
            return Unauthorized("this token lacks what a session's token has")
        own, _, below = path.removeprefix(_SESSIONS).partition("/")
        if not path.startswith(_SESSIONS) or own != session_id or below == "recreate":
            # Where a session gets a new sandbox, the coordinator says.
            return Unauthorized("this token opens one session, and this is not asked of that session")
        if path != _SESSIONS + own and not {"", ".", ".."}.isdisjoint(below.split("/")):
            # No route has such a part, and nobody shall find out whether something climbs by it.
            return NotFound("there is nothing at this path")
        if self._generation_of(session_id) not in (None, generation):
            return Unauthorized("the session has another sandbox now; ask the coordinator for new access")
        return None


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
