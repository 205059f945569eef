"""Webhooks: create, list, delete, and what could not be delivered. For callers with the scope ``admin``."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Depends, Query
from starlette.requests import HTTPConnection
from starlette.responses import Response

from sandlot.api.context import Caller, principal_of
from sandlot.api.edge.error_responses import PROBLEMS
from sandlot.api.edge.request_body import JsonRoute
from sandlot.api.responses.json import json_response
from sandlot.domain.callers.principal import Scope
from sandlot.domain.errors import Unsupported
from sandlot.domain.webhooks.webhook import Progress, Webhooks
from sandlot.wire.webhook_bodies import (
    CreateWebhookBody,
    DeadLetterPageBody,
    NewWebhookBody,
    RedeliverBody,
    WebhookBody,
    WebhookListBody,
)

# A response with a secret must stay in no cache.
_NO_STORE: Final = {"Cache-Control": "no-store"}

router = APIRouter(prefix="/v1/webhooks", tags=["webhooks"], route_class=JsonRoute, responses=PROBLEMS)


async def _webhooks(connection: HTTPConnection) -> Webhooks:
    principal_of(connection).require(Scope.ADMIN)
    webhooks: Webhooks | None = connection.app.state.webhooks
    if webhooks is None:
        raise Unsupported(
            "This server sends no webhooks, because it keeps no history. Its operator has set "
            "SANDLOT_HISTORY=false."
        )
    return webhooks


Sent = Annotated[Webhooks, Depends(_webhooks)]


@router.post("", status_code=201, response_model=NewWebhookBody)
async def create_webhook(webhooks: Sent, caller: Caller, body: CreateWebhookBody) -> Response:
    """Create a webhook, which sends events from now on. The response is the only place with its secret.

    Needs the scope `sessions:read` too. Commands are sent only if your key has `exec`, paths only if it has
    `files`.
    """
    webhook = await webhooks.create(caller, body.url, body.events)
    created = WebhookBody.of(webhook, Progress(0))
    headers = {**_NO_STORE, "Location": f"/v1/webhooks/{webhook.id}"}
    return json_response(NewWebhookBody(created, webhook.secret), 201, headers)


@router.get("", response_model=WebhookListBody)
async def list_webhooks(webhooks: Sent, caller: Caller) -> Response:
    """List the webhooks of your tenant, without their secrets."""
    return json_response(WebhookListBody.of(await webhooks.list(caller)))


@router.get("/{webhook_id}", response_model=WebhookBody)
async def get_webhook(webhooks: Sent, caller: Caller, webhook_id: str) -> Response:
    """Return a webhook, without its secret."""
    return json_response(WebhookBody.of(*await webhooks.get(caller, webhook_id)))


@router.delete("/{webhook_id}", status_code=204)
async def delete_webhook(webhooks: Sent, caller: Caller, webhook_id: str) -> Response:
    """Delete a webhook and its dead letters. It sends nothing more."""
    await webhooks.delete(caller, webhook_id)
    return Response(status_code=204)


@router.get("/{webhook_id}/dead-letters", response_model=DeadLetterPageBody)
async def list_dead_letters(
    webhooks: Sent,
    caller: Caller,
    webhook_id: str,
    after: Annotated[str | None, Query(description="The `next` value of the previous page.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000, description="Maximum number of entries per page.")] = 100,
) -> Response:
    """List the deliveries that were given up, oldest first."""
    page = await webhooks.dead_letters(caller, webhook_id, after=after, limit=limit)
    return json_response(DeadLetterPageBody.of(page))


@router.post("/{webhook_id}/dead-letters/redeliver", status_code=202, response_model=RedeliverBody)
async def redeliver_dead_letters(webhooks: Sent, caller: Caller, webhook_id: str) -> Response:
    """Try all dead letters once more, with the same ids. Those that fail again stay in the list."""
    return json_response(RedeliverBody.of(await webhooks.redeliver(caller, webhook_id)), 202)
