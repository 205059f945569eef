"""An administrator's requests: API keys and tenants."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final, TypeVar

import msgspec

from sandlot.client.http.service import HttpService
from sandlot.client.http.transport.request import query, segment
from sandlot.wire.http_bodies import wire_fields
from sandlot.wire.key_bodies import CreateKeyBody, KeyBody, KeyPageBody, NewKeyBody, RotateKeyBody
from sandlot.wire.tenant_bodies import LimitsBody, TenantBody, TenantPageBody

P = TypeVar("P", KeyPageBody, TenantPageBody)

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
        async for page in self._pages(_KEYS, "/v1/keys", tenant=tenant, limit=1000):
            for key in page.keys:
                yield key

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
        async for page in self._pages(_TENANTS, "/v1/tenants", limit=100):
            for tenant in page.tenants:
                yield tenant

    async def tenant(self, name: str) -> TenantBody:
        answer = await self._call("GET", f"/v1/tenants/{segment(name)}", None, repeatable=True)
        tenant: TenantBody = self._connection.decode(_TENANT, answer)
        return tenant

    async def set_limits(self, name: str, limits: LimitsBody) -> TenantBody:
        body = msgspec.json.encode(wire_fields(limits))
        answer = await self._call("PUT", f"/v1/tenants/{segment(name)}/limits", body, repeatable=True)
        tenant: TenantBody = self._connection.decode(_TENANT, answer)
        return tenant

    async def _pages(
        self, decoder: msgspec.json.Decoder[P], path: str, **options: str | int | None
    ) -> AsyncIterator[P]:
        after: str | None = None
        while True:
            answer = await self._call("GET", path + query(**options, after=after), None, repeatable=True)
            page: P = self._connection.decode(decoder, answer)
            yield page
            if page.next is None:
                return
            after = page.next
