"""A fleet's API keys, and the limits and policies of its tenants, in Redis.

Each operation is one script. ``scripts/prelude.lua`` describes the keys.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from sandlot.domain.callers import key_store
from sandlot.domain.callers.key_store import (
    CHANGES_AT_ONCE,
    KeyChanges,
    too_many_keys,
    too_many_policies,
    too_many_tenants,
)
from sandlot.domain.callers.keys import ApiKey, KeyPage, ended
from sandlot.domain.callers.limits import NO_LIMITS, CallerLimits
from sandlot.domain.errors import Conflict, Unavailable
from sandlot.domain.paging import check_page
from sandlot.fleet.redis.calls import ScriptCalls
from sandlot.fleet.redis.lua import load_scripts
from sandlot.wire.stored_keys import decode_key, encode_key, encode_limits, readable_limits

_SCRIPTS: Final = Path(__file__).parent / "scripts"
# Redis out of memory refuses new keys, limits and policies. It still accepts ends, and forgets keys.
_REFUSED_WHEN_FULL: Final = frozenset({"add", "limit", "policy"})
FORGET_AT_ONCE: Final = 100
# How often to try to end a key that others change at the same time.
MAX_TRIES: Final = 20


class RedisKeys:
    """Implements ``KeyStore``. ``calls`` are the directory's: the keys are beside it, in the same Redis."""

    def __init__(self, calls: ScriptCalls) -> None:
        self._calls = calls
        self._scripts = load_scripts(_SCRIPTS, refused_when_full=_REFUSED_WHEN_FULL)

    async def add(self, key: ApiKey) -> None:
        outcome, *_ = await self._run(
            "add",
            id=key.id,
            tenant=key.tenant,
            key=encode_key(key).decode(),
            now=key.created_at,
            max=key_store.MAX_KEYS_OF_TENANT,
            **_ends(key),
        )
        if outcome == b"full":
            raise too_many_keys(key.tenant)
        if outcome == b"exists":
            raise Conflict("There is a key with this id already.")

    async def get(self, key_id: str) -> ApiKey | None:
        _, *rows = await self._run("get", id=key_id)
        return next(iter(_keys(rows)), None)

    async def page(self, tenant: str | None, *, after: str | None = None, limit: int = 100) -> KeyPage:
        check_page(limit)
        given = {"tenant": tenant, "after": after}
        _, *rows = await self._run(
            "page", limit=limit + 1, **{name: value for name, value in given.items() if value is not None}
        )
        keys = _keys(rows)
        return KeyPage(keys[:limit], keys[limit - 1].id if len(keys) > limit else None)

    async def end(self, key_id: str, at: float, *, revoked: bool, replaced_by: str = "") -> ApiKey | None:
        for _ in range(MAX_TRIES):
            _, *rows = await self._run("get", id=key_id)
            before = next(iter(_keys(rows)), None)
            if before is None:
                return None
            after = ended(before, at, revoked=revoked, replaced_by=replaced_by)
            outcome, *_ = await self._run(
                "replace",
                id=key_id,
                before=rows[0][0].decode(),
                key=encode_key(after).decode(),
                **_ends(after),
            )
            if outcome == b"ok":
                return after
        raise Unavailable("Others are changing this key. Retry.", retry_after_s=1.0)

    async def record_use(self, used_at: Mapping[str, float]) -> None:
        items = iter(used_at.items())
        while batch := dict(itertools.islice(items, CHANGES_AT_ONCE)):
            await self._run("use", used=batch)

    async def set_limits(self, tenant: str, limits: CallerLimits) -> None:
        outcome, *_ = await self._run(
            "limit",
            tenant=tenant,
            limits="" if limits == NO_LIMITS else encode_limits(limits).decode(),
            max=key_store.MAX_TENANTS_WITH_LIMITS,
        )
        if outcome == b"full":
            raise too_many_tenants()

    async def set_policy(self, tenant: str, policy: str | None) -> None:
        outcome, *_ = await self._run(
            "policy", tenant=tenant, policy=policy or "", max=key_store.MAX_TENANTS_WITH_POLICY
        )
        if outcome == b"full":
            raise too_many_policies()

    async def changes(self, mark: str = "") -> KeyChanges:
        name, _, number = mark.rpartition(":")
        since = int(number) if number.isdecimal() else -1
        _, found_name, last, everything, more, keys, tenants = await self._run(
            "changes", known=name, since=since, limit=CHANGES_AT_ONCE
        )
        return KeyChanges(
            _keys(keys),
            f"{found_name.decode()}:{last}",
            bool(everything),
            readable_limits((tenant.decode(), limits) for tenant, limits, _ in tenants),
            {tenant.decode(): policy.decode() or None for tenant, _, policy in tenants},
            bool(more),
        )

    async def forget_ended(self, before: float) -> int:
        forgotten = 0
        while True:
            _, count = await self._run("forget", before=before, limit=FORGET_AT_ONCE)
            forgotten += int(count)
            if count < FORGET_AT_ONCE:
                return forgotten

    async def _run(self, script: str, **arguments: Any) -> list[Any]:
        return await self._calls(self._scripts[script], {"fresh": secrets.token_hex(8), **arguments})


def _ends(key: ApiKey) -> dict[str, float]:
    return {} if key.expires_at is None else {"ends": key.expires_at}


def _keys(rows: list[list[bytes]]) -> list[ApiKey]:
    keys = (decode_key(stored, float(used_at) if used_at else None) for stored, used_at in rows)
    return [key for key in keys if key is not None]
