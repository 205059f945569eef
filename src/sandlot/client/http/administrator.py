"""An administrator's requests: API keys, tenants, webhooks, and the registry."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final, TypeVar

import msgspec

from sandlot.client.http.service import HttpService
from sandlot.client.http.transport.request import query, segment
from sandlot.domain.environment import Reload
from sandlot.wire.http_bodies import wire_fields
from sandlot.wire.key_bodies import CreateKeyBody, KeyBody, KeyPageBody, NewKeyBody, RotateKeyBody
from sandlot.wire.tenant_bodies import LimitsBody, PolicyBody, TenantBody, TenantPageBody
from sandlot.wire.webhook_bodies import (
    CreateWebhookBody,
    DeadLetterPageBody,
    NewWebhookBody,
    RedeliverBody,
    WebhookBody,
    WebhookListBody,
)

P = TypeVar("P", KeyPageBody, TenantPageBody, DeadLetterPageBody)

_KEY: Final = msgspec.json.Decoder(KeyBody)
_NEW_KEY: Final = msgspec.json.Decoder(NewKeyBody)
_KEYS: Final = msgspec.json.Decoder(KeyPageBody)
_TENANT: Final = msgspec.json.Decoder(TenantBody)
_TENANTS: Final = msgspec.json.Decoder(TenantPageBody)
_NEW_WEBHOOK: Final = msgspec.json.Decoder(NewWebhookBody)
_WEBHOOKS: Final = msgspec.json.Decoder(WebhookListBody)
_DEAD_LETTERS: Final = msgspec.json.Decoder(DeadLetterPageBody)
_REDELIVER: Final = msgspec.json.Decoder(RedeliverBody)
_RELOAD: Final = msgspec.json.Decoder(Reload)


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
        """Iterate over the tenants that have limits or a policy of their own, page by page."""
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

    async def set_policy(self, name: str, policy: str | None) -> TenantBody:
        body = msgspec.json.encode(PolicyBody(policy))
        answer = await self._call("PUT", f"/v1/tenants/{segment(name)}/policy", body, repeatable=True)
        tenant: TenantBody = self._connection.decode(_TENANT, answer)
        return tenant

    async def create_webhook(self, body: CreateWebhookBody) -> NewWebhookBody:
        """Create a webhook. Never repeated by itself, as ``create_key`` is not."""
        answer = await self._call("POST", "/v1/webhooks", msgspec.json.encode(body), repeatable=False)
        new: NewWebhookBody = self._connection.decode(_NEW_WEBHOOK, answer)
        return new

    async def webhooks(self) -> list[WebhookBody]:
        answer = await self._call("GET", "/v1/webhooks", None, repeatable=True)
        found: WebhookListBody = self._connection.decode(_WEBHOOKS, answer)
        return found.webhooks

    async def delete_webhook(self, webhook_id: str) -> None:
        await self._call("DELETE", f"/v1/webhooks/{segment(webhook_id)}", None, repeatable=True)

    async def dead_letters(self, webhook_id: str) -> AsyncIterator[DeadLetterPageBody]:
        """Iterate over the pages of a webhook's dead letters."""
        path = f"/v1/webhooks/{segment(webhook_id)}/dead-letters"
        async for page in self._pages(_DEAD_LETTERS, path, limit=1000):
            yield page

    async def redeliver(self, webhook_id: str) -> RedeliverBody:
        """Have all dead letters tried again."""
        path = f"/v1/webhooks/{segment(webhook_id)}/dead-letters/redeliver"
        answer = await self._call("POST", path, None, repeatable=True)
        started: RedeliverBody = self._connection.decode(_REDELIVER, answer)
        return started

    async def reload_environments(self) -> Reload:
        """Have the server read its registry again."""
        answer = await self._call("POST", "/v1/environments/reload", None, repeatable=True)
        reload: Reload = self._connection.decode(_RELOAD, answer)
        return reload

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
