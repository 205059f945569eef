"""API keys: create, list, rotate, revoke. For callers with the scope ``admin`` or ``fleet:operate``."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Body, Depends, Query
from starlette.requests import HTTPConnection
from starlette.responses import Response

from sandlot.api.context import Caller, principal_of
from sandlot.api.edge.error_responses import PROBLEMS
from sandlot.api.edge.key_ring import KeyRing
from sandlot.api.edge.request_body import JsonRoute
from sandlot.api.responses.json import json_response
from sandlot.domain.callers.keys import (
    ApiKey,
    NewKey,
    check_may_end,
    check_may_manage,
    is_key_id,
    issue,
    reissue,
    visible_to,
)
from sandlot.domain.callers.limits import NO_LIMITS
from sandlot.domain.callers.principal import Principal, Scope, check_tenant, parse_scopes
from sandlot.domain.errors import Conflict, InvalidRequest
from sandlot.wire.key_bodies import CreateKeyBody, KeyBody, KeyPageBody, NewKeyBody, RotateKeyBody

MAX_GRACE_S: Final = 7 * 24 * 3600.0
# A response with a secret must stay in no cache.
_NO_STORE: Final = {"Cache-Control": "no-store"}

router = APIRouter(prefix="/v1/keys", tags=["keys"], route_class=JsonRoute, responses=PROBLEMS)


async def _ring(connection: HTTPConnection) -> KeyRing:
    caller = principal_of(connection)
    if not caller.may(Scope.FLEET_OPERATE):
        caller.require(Scope.ADMIN)
    ring: KeyRing | None = connection.app.state.keys
    if ring is None:
        raise Conflict(
            "This server keeps no keys. Start a single server with SANDLOT_API_KEY, the administrator's key, "
            "and create keys with that. In a fleet, ask a coordinator."
        )
    return ring


Ring = Annotated[KeyRing, Depends(_ring)]


@router.post("", status_code=201, response_model=NewKeyBody)
async def create_key(ring: Ring, caller: Caller, body: CreateKeyBody) -> Response:
    """Create a key. The response is the only place that shows its secret."""
    new = issue(
        caller,
        ring.clock(),
        name=body.name,
        tenant=body.tenant,
        scopes=None if body.scopes is None else parse_scopes(body.scopes),
        lifetime_s=body.expires_in_s,
        # No key gives more than its creator has.
        limits=(NO_LIMITS if body.limits is None else body.limits.to_domain()).tightened(
            ring.key_limits(caller.key_id)
        ),
    )
    await ring.add(new.key)
    return _shown_once(ring, new)


@router.get("", response_model=KeyPageBody)
async def list_keys(
    ring: Ring,
    caller: Caller,
    tenant: Annotated[
        str | None,
        Query(description="Whose keys. Default: with `fleet:operate` all, else those of your own tenant."),
    ] = None,
    after: Annotated[str | None, Query(description="The `next` value of the previous page.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000, description="Maximum number of entries per page.")] = 100,
) -> Response:
    """List keys, without their secrets. A key that has ended is listed for 90 days."""
    if tenant is not None:
        check_may_manage(caller, check_tenant(tenant))
    elif not caller.may(Scope.FLEET_OPERATE):
        tenant = caller.tenant
    if after is not None and not is_key_id(after):
        raise InvalidRequest(
            f"{after!r:.80} is not a page cursor. Pass the 'next' value of the previous page."
        )
    page = await ring.store.page(tenant, after=after, limit=limit)
    return json_response(KeyPageBody.of(page, ring.clock()))


@router.get("/{key_id}", response_model=KeyBody)
async def get_key(ring: Ring, caller: Caller, key_id: str) -> Response:
    """Return a key, without its secret."""
    return json_response(KeyBody.of(await _managed(ring, caller, key_id), ring.clock()))


@router.delete("/{key_id}", response_model=KeyBody)
async def revoke_key(ring: Ring, caller: Caller, key_id: str) -> Response:
    """Revoke a key. All servers refuse it within 5 seconds and close its connections."""
    key = await _managed(ring, caller, key_id)
    check_may_end(caller, key)
    revoked = await ring.end(key.id, ring.clock(), revoked=True)
    return json_response(KeyBody.of(revoked or key, ring.clock()))


@router.post("/{key_id}/rotate", status_code=201, response_model=NewKeyBody)
async def rotate_key(
    ring: Ring,
    caller: Caller,
    key_id: str,
    body: Annotated[RotateKeyBody, Body(default_factory=RotateKeyBody)],
) -> Response:
    """Create a key with the same tenant, name, scopes and limits. The old one ends after a grace period."""
    if not 0 <= body.grace_s <= MAX_GRACE_S:
        raise InvalidRequest(f"grace_s must be between 0 and {MAX_GRACE_S:.0f}.")
    key = await _managed(ring, caller, key_id)
    check_may_end(caller, key)
    now = ring.clock()
    new = reissue(caller, key, now)
    await ring.add(new.key)
    # The new key first: if this process dies here, the old one still works.
    await ring.end(key.id, now + body.grace_s, revoked=body.grace_s == 0, replaced_by=new.key.id)
    return _shown_once(ring, new)


async def _managed(ring: KeyRing, caller: Principal, key_id: str) -> ApiKey:
    return visible_to(caller, await ring.store.get(key_id) if is_key_id(key_id) else None)


def _shown_once(ring: KeyRing, new: NewKey) -> Response:
    body = NewKeyBody(KeyBody.of(new.key, ring.clock()), new.text)
    return json_response(body, 201, {**_NO_STORE, "Location": f"/v1/keys/{new.key.id}"})
