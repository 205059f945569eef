"""A fleet's webhooks in Redis. ``scripts/prelude.lua`` describes the keys."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog

from sandlot.domain.webhooks import webhook as limits
from sandlot.domain.webhooks.shared import WebhookList
from sandlot.domain.webhooks.webhook import Webhook, too_many, too_many_of_tenant
from sandlot.fleet.redis.calls import ScriptCalls
from sandlot.fleet.redis.lua import load_scripts

log = structlog.get_logger("sandlot.webhooks")

_SCRIPTS: Final = Path(__file__).parent / "scripts"


class RedisWebhooks:
    """Implements ``SharedWebhooks``. ``calls`` are the directory's."""

    def __init__(self, calls: ScriptCalls) -> None:
        self._calls = calls
        # Redis out of memory refuses new webhooks, and still removes some.
        self._scripts = load_scripts(_SCRIPTS, refused_when_full=frozenset({"add"}))

    async def add(self, webhook: Webhook) -> None:
        [outcome] = await self._run(
            "add",
            id=webhook.id,
            tenant=webhook.tenant,
            webhook=msgspec.json.encode(webhook, order="deterministic").decode(),
            max=limits.MAX_WEBHOOKS,
            max_of_tenant=limits.MAX_WEBHOOKS_OF_TENANT,
        )
        if outcome == b"full":
            raise too_many()
        if outcome == b"full of tenant":
            raise too_many_of_tenant()

    async def remove(self, webhook: Webhook) -> None:
        await self._run("remove", id=webhook.id, tenant=webhook.tenant)

    async def current(self, mark: str = "") -> WebhookList | None:
        outcome, *rest = await self._run("current", known=mark)
        if outcome == b"same":
            return None
        found_mark, fields = rest
        found = [webhook for stored in fields[1::2] if (webhook := _decoded(stored)) is not None]
        found.sort(key=lambda webhook: (webhook.created_at, webhook.id))
        return WebhookList(found, found_mark.decode())

    async def _run(self, script: str, **arguments: Any) -> list[Any]:
        return await self._calls(self._scripts[script], {"fresh": secrets.token_hex(8), **arguments})


def _decoded(stored: bytes) -> Webhook | None:
    try:
        return msgspec.json.decode(stored, type=Webhook)
    except msgspec.MsgspecError:
        log.warning("a webhook in Redis cannot be read; it sends nothing")
        return None
