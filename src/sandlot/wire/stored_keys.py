"""An API key as stores keep it: JSON, readable by the versions before and after this one."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import msgspec

from sandlot.domain.callers.keys import ApiKey
from sandlot.domain.callers.principal import Scope


@dataclass(frozen=True, slots=True)
class _StoredKey:
    id: str
    tenant: str
    name: str
    scopes: list[str]
    digest: bytes
    hint: str
    created_at: float
    created_by: str = ""
    expires_at: float | None = None
    revoked_at: float | None = None
    replaced_by: str = ""


def encode_key(key: ApiKey) -> bytes:
    """Without the time of its last use, which changes all the time and is kept beside the key."""
    values = {field.name: getattr(key, field.name) for field in dataclasses.fields(_StoredKey)}
    return msgspec.json.encode(_StoredKey(**{**values, "scopes": sorted(key.scopes)}))


def decode_key(stored: bytes, last_used_at: float | None) -> ApiKey | None:
    """None for a record that cannot be read. A scope of a newer version gives nothing here."""
    try:
        found = msgspec.json.decode(stored, type=_StoredKey)
    except msgspec.MsgspecError:
        return None
    values = {field.name: getattr(found, field.name) for field in dataclasses.fields(_StoredKey)}
    scopes = frozenset(scope for scope in Scope if scope.value in found.scopes)
    return ApiKey(**{**values, "scopes": scopes}, last_used_at=last_used_at)
