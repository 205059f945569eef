"""API keys: what a key is, how it is written, and who may manage which keys. Pure.

A key is written ``sl_<id>_<secret><checksum>``. The id finds the key, the checksum lets a client and a
scanner for leaked secrets tell a key from other text. The server keeps a SHA-256 digest of the secret and
shows the key once. A slow hash would add nothing: no one can guess 238 random bits.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import string
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from sandlot.domain.callers.limits import NO_LIMITS, CallerLimits
from sandlot.domain.callers.principal import USER_SCOPES, Principal, Scope, check_tenant
from sandlot.domain.errors import Forbidden, InvalidRequest, NotFound

_ID_LETTERS: Final = string.ascii_lowercase + "234567"
_LETTERS: Final = string.ascii_letters + string.digits
_ID_CHARS, _SECRET_CHARS, _CHECKSUM_CHARS = 12, 40, 6
HINT_CHARS: Final = 4
MAX_NAME_CHARS: Final = 100
# Ten years. A key without an expiry never expires.
MAX_LIFETIME_S: Final = 10 * 365 * 24 * 3600.0
_KEY: Final = re.compile(
    rf"sl_([a-z2-7]{{{_ID_CHARS}}})_([A-Za-z0-9]{{{_SECRET_CHARS}}})([A-Za-z0-9]{{{_CHECKSUM_CHARS}}})"
)
# Finds keys within other text, to mask them.
KEY_IN_TEXT: Final = _KEY
KEY_PREFIX: Final = "sl_"
# Finds what may be the beginning of a key, in text that goes on later.
KEY_CHARS: Final = len(KEY_PREFIX + "_") + _ID_CHARS + _SECRET_CHARS + _CHECKSUM_CHARS
BEGINNING_OF_KEY: Final = re.compile(
    rf"s|sl|sl_[a-z2-7]{{0,{_ID_CHARS}}}"
    rf"|sl_[a-z2-7]{{{_ID_CHARS}}}_[A-Za-z0-9]{{0,{_SECRET_CHARS + _CHECKSUM_CHARS - 1}}}"
)
_KEY_ID: Final = re.compile(rf"[a-z2-7]{{{_ID_CHARS}}}")
_NAME: Final = re.compile(rf"[ -~]{{1,{MAX_NAME_CHARS}}}")

# What lets a key's holder create other keys.
MANAGING_SCOPES: Final = frozenset({Scope.ADMIN, Scope.FLEET_OPERATE})

KeyState = Literal["active", "expired", "revoked"]


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key as the server keeps it.

    id: names the key in lists and commands.
    tenant: whose sessions the key sees.
    name: what its creator calls it.
    scopes: what its holder may do.
    digest: the SHA-256 digest of its secret.
    hint: its last characters, to tell keys apart.
    created_at, created_by: when, and by whom: the id of a key, or the subject of a token; empty for the
        server's own key.
    expires_at: when it ends by itself; None for never.
    revoked_at: when it was revoked; None if it was not.
    replaced_by: the id of the key that a rotation put in its place; empty if there is none.
    last_used_at: when it was last used, to within a minute; None if never.
    limits: on what its holder may use, beside the tenant's own.
    """

    id: str
    tenant: str
    name: str
    scopes: frozenset[Scope]
    digest: bytes
    hint: str
    created_at: float
    created_by: str = ""
    expires_at: float | None = None
    revoked_at: float | None = None
    replaced_by: str = ""
    last_used_at: float | None = None
    limits: CallerLimits = NO_LIMITS

    def state(self, now: float) -> KeyState:
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and now >= self.expires_at else "active"

    @property
    def principal(self) -> Principal:
        return Principal(self.tenant, self.scopes, self.id, self.name, self.expires_at)


@dataclass(frozen=True, slots=True)
class KeyPage:
    """One page of keys, in the order of their ids. ``next`` is None on the last page."""

    keys: Sequence[ApiKey]
    next: str | None = None


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key that was just issued, with its text, which is kept nowhere."""

    key: ApiKey
    text: str = field(repr=False)


def issue(
    creator: Principal,
    now: float,
    *,
    name: str,
    tenant: str | None = None,
    scopes: frozenset[Scope] | None = None,
    lifetime_s: float | None = None,
    limits: CallerLimits = NO_LIMITS,
) -> NewKey:
    """A new key in the creator's name. Without ``scopes``, it may use sandboxes and nothing else.

    Raises ``Forbidden`` if the creator may not issue it: no key gives more than its creator has. A key that
    manages others ends with its creator's, so that nobody outlives their own end.
    """
    if _NAME.fullmatch(name) is None or not name.strip():
        raise InvalidRequest(f"A key's name has 1-{MAX_NAME_CHARS} printable ASCII characters.")
    if lifetime_s is not None and not 0 < lifetime_s <= MAX_LIFETIME_S:
        raise InvalidRequest(f"A key's lifetime must be between 0 and {MAX_LIFETIME_S:.0f} seconds.")
    owner = creator.tenant if tenant is None else check_tenant(tenant)
    check_may_manage(creator, owner)
    granted = USER_SCOPES & creator.scopes if scopes is None else scopes
    if not granted:
        raise InvalidRequest("A key needs at least one scope.")
    if missing := sorted(granted - creator.scopes):
        raise Forbidden(
            f"You cannot create a key with the scope {missing[0].value}, because your own key lacks it.",
            details={"scope": missing[0].value},
        )
    expires_at = None if lifetime_s is None else now + lifetime_s
    if creator.expires_at is not None and granted & MANAGING_SCOPES:
        expires_at = creator.expires_at if expires_at is None else min(expires_at, creator.expires_at)
    key_id = "".join(secrets.choice(_ID_LETTERS) for _ in range(_ID_CHARS))
    secret = "".join(secrets.choice(_LETTERS) for _ in range(_SECRET_CHARS))
    text = f"sl_{key_id}_{secret}"
    text += _checksum(text)
    return NewKey(
        ApiKey(
            id=key_id,
            tenant=owner,
            name=name,
            scopes=granted,
            digest=_digest(secret),
            hint=text[-HINT_CHARS:],
            created_at=now,
            created_by=creator.key_id or creator.subject,
            expires_at=expires_at,
            limits=limits,
        ),
        text,
    )


def reissue(creator: Principal, key: ApiKey, now: float) -> NewKey:
    """A new key to put in the place of ``key``: the same tenant, name, scopes, lifetime and limits."""
    if key.state(now) != "active":
        raise InvalidRequest(f"Key {key.id} is {key.state(now)}. Create a new one instead.")
    if key.replaced_by:
        raise InvalidRequest(f"Key {key.id} was replaced by {key.replaced_by}. Rotate that one.")
    lifetime_s = None if key.expires_at is None else min(key.expires_at - key.created_at, MAX_LIFETIME_S)
    return issue(
        creator,
        now,
        name=key.name,
        tenant=key.tenant,
        scopes=key.scopes,
        lifetime_s=lifetime_s,
        limits=key.limits,
    )


def ended(key: ApiKey, at: float, *, revoked: bool, replaced_by: str = "") -> ApiKey:
    """The key with its end at ``at``, unless it ends earlier. A revoked key stays revoked."""
    return replace(
        key,
        expires_at=at if key.expires_at is None else min(at, key.expires_at),
        revoked_at=at if revoked and key.revoked_at is None else key.revoked_at,
        replaced_by=replaced_by or key.replaced_by,
    )


def check_may_manage(principal: Principal, tenant: str) -> None:
    """Raise ``Forbidden`` unless the caller manages this tenant's keys."""
    if principal.may(Scope.FLEET_OPERATE):
        return
    principal.require(Scope.ADMIN)
    if principal.tenant != tenant:
        raise Forbidden(
            f"Your key manages the keys of tenant {principal.tenant} only. Other tenants need the scope "
            f"{Scope.FLEET_OPERATE.value}.",
            details={"scope": Scope.FLEET_OPERATE.value},
        )


def visible_to(principal: Principal, key: ApiKey | None) -> ApiKey:
    """The key, if the caller manages its tenant. A foreign key does not exist."""
    if key is None or not (principal.may(Scope.FLEET_OPERATE) or key.tenant == principal.tenant):
        # Without what was asked for: it may be a whole key, pasted by mistake.
        raise NotFound("There is no key with this id. `sandlot keys list` shows the ids.")
    return key


def check_may_end(principal: Principal, key: ApiKey) -> None:
    """Raise ``Forbidden`` if the key may do more to other tenants than the caller."""
    if Scope.FLEET_OPERATE in key.scopes:
        principal.require(Scope.FLEET_OPERATE)


def parse_key(text: str) -> tuple[str, str] | None:
    """The key's id and secret, or None if this is not a key."""
    match = _KEY.fullmatch(text)
    if match is None or match[3] != _checksum(text[:-_CHECKSUM_CHARS]):
        return None
    return match[1], match[2]


def is_key_id(text: str) -> bool:
    return _KEY_ID.fullmatch(text) is not None


def opens(key: ApiKey, secret: str) -> bool:
    return hmac.compare_digest(_digest(secret), key.digest)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def _checksum(text: str) -> str:
    number, letters = zlib.crc32(text.encode()), ""
    for _ in range(_CHECKSUM_CHARS):
        number, digit = divmod(number, len(_LETTERS))
        letters += _LETTERS[digit]
    return letters
