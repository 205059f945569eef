"""An administrator's requests: API keys and tenants."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import msgspec

from sandlot.client.http.service import HttpService
from sandlot.client.http.transport.request import query, segment
from sandlot.wire.http_bodies import wire_fields
from sandlot.wire.key_bodies import CreateKeyBody, KeyBody, KeyPageBody, NewKeyBody, RotateKeyBody
from sandlot.wire.tenant_bodies import LimitsBody, TenantBody, TenantPageBody

_KEY: Final = msgspec.json.Decoder(KeyBody)
_NEW_KEY: Final = msgspec.json.Decoder(NewKeyBody)
_KEYS: Final = msgspec.json.Decoder(KeyPageBody)
_TENANT: Final = msgspec.json.Decoder(TenantBody)
_TENANTS: Final = msgspec.json.Decoder(TenantPageBody)


class Administrator(HttpService):
    """``HttpService`` plus the requests that only an administrator makes."""

    async def create_key(self, body: CreateKeyBody) -> NewKeyBody:
        """Create a key. Never repeated by itself: a lost answer would leave a key that nobody has."""
        answer = await self._call(
            "POST", "/v1/keys", msgspec.json.encode(wire_fields(body)), repeatable=False
        )
        new: NewKeyBody = self._connection.decode(_NEW_KEY, answer)
        return new

    async def keys(self, tenant: str | None = None) -> AsyncIterator[KeyBody]:
        """Iterate over the keys that the caller manages, page by page."""
        after: str | None = None
        while True:
            path = "/v1/keys" + query(tenant=tenant, after=after, limit=1000)
            page: KeyPageBody = self._connection.decode(
                _KEYS, await self._call("GET", path, None, repeatable=True)
            )
            for key in page.keys:
                yield key
            if page.next is None:
                return
            after = page.next

    async def revoke_key(self, key_id: str) -> KeyBody:
        answer = await self._call("DELETE", f"/v1/keys/{segment(key_id)}", None, repeatable=True)
        key: KeyBody = self._connection.decode(_KEY, answer)
        return key

    async def rotate_key(self, key_id: str, grace_s: float) -> NewKeyBody:
        body = msgspec.json.encode(RotateKeyBody(grace_s))
        answer = await self._call("POST", f"/v1/keys/{segment(key_id)}/rotate", body, repeatable=False)
        new: NewKeyBody = self._connection.decode(_NEW_KEY, answer)
        return new

    async def tenants(self) -> AsyncIterator[TenantBody]:
        """Iterate over the tenants that have limits of their own, page by page."""
        after: str | None = None
        while True:
            path = "/v1/tenants" + query(after=after, limit=100)
            answer = await self._call("GET", path, None, repeatable=True)
            page: TenantPageBody = self._connection.decode(_TENANTS, answer)
            for tenant in page.tenants:
                yield tenant
            if page.next is None:
                return
            after = page.next

    async def tenant(self, name: str) -> TenantBody:
        answer = await self._call("GET", f"/v1/tenants/{segment(name)}", None, repeatable=True)
        tenant: TenantBody = self._connection.decode(_TENANT, answer)
        return tenant

    async def set_limits(self, name: str, limits: LimitsBody) -> TenantBody:
        body = msgspec.json.encode(wire_fields(limits))
        answer = await self._call("PUT", f"/v1/tenants/{segment(name)}/limits", body, repeatable=True)
        tenant: TenantBody = self._connection.decode(_TENANT, answer)
        return tenant
