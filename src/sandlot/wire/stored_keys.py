"""An API key as stores keep it: JSON, readable by the versions before and after this one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import msgspec

from sandlot.domain.callers.keys import ApiKey
from sandlot.domain.callers.limits import NO_LIMITS, CallerLimits
from sandlot.domain.callers.principal import Scope
from sandlot.domain.errors import InvalidRequest


def encode_key(key: ApiKey) -> bytes:
    """Without the time of its last use, which changes all the time and is kept beside the key."""
    return msgspec.json.encode(replace(key, last_used_at=None), order="deterministic")


def decode_key(stored: bytes, last_used_at: float | None) -> ApiKey | None:
    """None for a record that cannot be read. A scope of a newer version gives nothing here."""
    try:
        values = msgspec.json.decode(stored, type=dict[str, Any])
        values["scopes"] = [scope for scope in Scope if scope.value in values["scopes"]]
        return replace(msgspec.convert(values, ApiKey), last_used_at=last_used_at)
    except (msgspec.MsgspecError, KeyError, TypeError, InvalidRequest):
        return None


def encode_limits(limits: CallerLimits) -> bytes:
    return msgspec.json.encode(limits)


def readable_limits(rows: Iterable[tuple[str, bytes]]) -> dict[str, CallerLimits]:
    """The limits of tenants. Those that cannot be read are left out, and so stay as they were."""
    found = {}
    for tenant, stored in rows:
        with contextlib.suppress(msgspec.MsgspecError, InvalidRequest):
            found[tenant] = msgspec.json.decode(stored, type=CallerLimits) if stored else NO_LIMITS
    return found
