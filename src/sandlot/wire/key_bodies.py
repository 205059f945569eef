"""HTTP bodies for API keys."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from sandlot.domain.callers.keys import ApiKey, KeyPage
from sandlot.wire.http_bodies import STRICT
from sandlot.wire.tenant_bodies import LimitsBody


@dataclass(frozen=True, slots=True)
class CreateKeyBody:
    """A key to create.

    name: what you call it, such as the program that uses it.
    tenant: whose sessions it sees; null for your own tenant.
    scopes: what its holder may do; null for everything with sandboxes: ``sessions:read``, ``sessions:write``,
        ``exec``, ``files`` and ``network``. You cannot give a scope that your own key lacks.
    expires_in_s: seconds until it expires; null for never.
    limits: on what its holder may use, beside the tenant's own; null for none.
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    name: str
    tenant: str | None = None
    scopes: list[str] | None = None
    expires_in_s: float | None = None
    limits: LimitsBody | None = None


@dataclass(frozen=True, slots=True)
class RotateKeyBody:
    """How to rotate a key.

    grace_s: seconds for which the old key goes on working, at most a week.
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    grace_s: float = 0.0


@dataclass(frozen=True, slots=True)
class KeyBody:
    """A key, without its secret.

    id: names the key.
    tenant: whose sessions it sees.
    name: what its creator calls it.
    scopes: what its holder may do.
    hint: its last four characters.
    state: ``active``, ``expired`` or ``revoked``.
    created_at: seconds since 1970; so are the other times.
    created_by: who created it: the id of a key, or the subject of a token; empty for the server's own key.
    expires_at: when it ends by itself; null for never.
    revoked_at: when it was revoked; null if it was not.
    replaced_by: the id of the key that a rotation put in its place; empty if there is none.
    last_used_at: when it was last used, to within a minute; null if never.
    limits: on what its holder may use, beside the tenant's own.
    """

    id: str
    tenant: str
    name: str
    scopes: list[str]
    hint: str
    state: str
    created_at: float
    created_by: str = ""
    expires_at: float | None = None
    revoked_at: float | None = None
    replaced_by: str = ""
    last_used_at: float | None = None
    limits: LimitsBody = LimitsBody()  # noqa: RUF009  frozen

    @classmethod
    def of(cls, key: ApiKey, now: float) -> KeyBody:
        return cls(
            id=key.id,
            tenant=key.tenant,
            name=key.name,
            scopes=sorted(key.scopes),
            hint=key.hint,
            state=key.state(now),
            created_at=key.created_at,
            created_by=key.created_by,
            expires_at=key.expires_at,
            revoked_at=key.revoked_at,
            replaced_by=key.replaced_by,
            last_used_at=key.last_used_at,
            limits=LimitsBody.of(key.limits),
        )


@dataclass(frozen=True, slots=True)
class NewKeyBody:
    """A key that was just created.

    key: the key.
    secret: the text to send as ``Authorization: Bearer …``. It is shown only here.
    """

    key: KeyBody
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class KeyPageBody:
    """One page of keys.

    keys: in the order of their ids.
    next: send it as ``after`` to get the next page; null on the last one.
    """

    keys: list[KeyBody]
    next: str | None = None

    @classmethod
    def of(cls, page: KeyPage, now: float) -> KeyPageBody:
        return cls([KeyBody.of(key, now) for key in page.keys], page.next)
