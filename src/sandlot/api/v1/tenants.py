"""Tenants: what they may use, what they use now, and the policy that their commands must pass."""

from __future__ import annotations

import bisect
from collections.abc import Collection
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from sandlot.api.context import Caller, Host, principal_of
from sandlot.api.edge.error_responses import PROBLEMS
from sandlot.api.edge.key_ring import KeyRing
from sandlot.api.edge.request_body import JsonRoute
from sandlot.api.responses.json import json_response
from sandlot.domain.callers.limits import NO_LIMITS, tenant_holder
from sandlot.domain.callers.principal import Principal, Scope, check_tenant
from sandlot.domain.errors import Conflict, InvalidRequest, NotFound
from sandlot.domain.service import SandboxHost
from sandlot.domain.text.suggestions import did_you_mean
from sandlot.wire.tenant_bodies import LimitsBody, PolicyBody, TenantBody, TenantPageBody, UseBody

router = APIRouter(prefix="/v1/tenants", tags=["tenants"], route_class=JsonRoute, responses=PROBLEMS)


async def _ring(connection: HTTPConnection) -> KeyRing:
    caller = principal_of(connection)
    if not caller.may(Scope.FLEET_OPERATE):
        caller.require(Scope.SESSIONS_READ)
    ring: KeyRing | None = connection.app.state.keys
    if ring is None:
        raise Conflict(
            "This server has one tenant and no limits for it, because it has no keys. Start a single server "
            "with SANDLOT_API_KEY, the administrator's key. In a fleet, ask a coordinator."
        )
    return ring


Ring = Annotated[KeyRing, Depends(_ring)]


@router.get("", response_model=TenantPageBody)
async def list_tenants(
    ring: Ring,
    host: Host,
    caller: Caller,
    after: Annotated[str | None, Query(description="The `next` value of the previous page.")] = None,
    limit: Annotated[int, Query(ge=1, le=100, description="Maximum number of entries per page.")] = 100,
) -> Response:
    """List the tenants that have limits or a policy of their own. Needs the scope `fleet:operate`."""
    caller.require(Scope.FLEET_OPERATE)
    names = sorted(ring.limits.keys() | ring.policies.keys())
    begin = 0 if after is None else bisect.bisect_right(names, after)
    page = names[begin : begin + limit]
    more = begin + limit < len(names)
    tenants = [await _described(ring, host, name) for name in page]
    return json_response(TenantPageBody(tenants, page[-1] if more else None))


@router.get("/{tenant}", response_model=TenantBody)
async def get_tenant(ring: Ring, host: Host, caller: Caller, tenant: str) -> Response:
    """Return what a tenant may use, what it uses now, and its command policy.

    Other tenants need the scope `fleet:operate`.
    """
    _check_visible(caller, tenant)
    if caller.may(Scope.FLEET_OPERATE):
        await ring.refresh()  # the operator may have set them a moment ago, through another coordinator
    return json_response(await _described(ring, host, check_tenant(tenant)))


@router.put("/{tenant}/limits", response_model=TenantBody)
async def set_limits(ring: Ring, host: Host, caller: Caller, tenant: str, body: LimitsBody) -> Response:
    """Set a tenant's limits in place of those that it had. Needs the scope `fleet:operate`.

    All servers apply them within 5 seconds. What a tenant already uses stays, even above a new limit.
    """
    caller.require(Scope.FLEET_OPERATE)
    await ring.set_limits(check_tenant(tenant), body.to_domain())
    return json_response(await _described(ring, host, tenant))


@router.put("/{tenant}/policy", response_model=TenantBody)
async def set_policy(
    ring: Ring, host: Host, caller: Caller, tenant: str, body: PolicyBody, request: Request
) -> Response:
    """Give a tenant a command policy in place of the one that it had. Needs the scope `fleet:operate`.

    Every command of the tenant must then pass it, beside the policy of the session's environment. All servers
    apply it within 5 seconds. A command that runs goes on.
    """
    caller.require(Scope.FLEET_OPERATE)
    _check_known(body.policy, request.app.state.policies)
    await ring.set_policy(check_tenant(tenant), body.policy)
    return json_response(await _described(ring, host, tenant))


def _check_known(policy: str | None, known: Collection[str]) -> None:
    if policy is not None and policy not in known:
        raise InvalidRequest(
            f"Unknown policy {policy!r:.80}.{did_you_mean(policy[:80], known)} The server's registry has: "
            f"{', '.join(sorted(known)) or 'none'}."
        )


def _check_visible(caller: Principal, tenant: str) -> None:
    """A foreign tenant does not exist."""
    if caller.tenant != tenant and not caller.may(Scope.FLEET_OPERATE):
        raise NotFound("There is no such tenant, or your key may not see it.")


async def _described(ring: KeyRing, host: SandboxHost, tenant: str) -> TenantBody:
    return TenantBody(
        tenant,
        LimitsBody.of(ring.limits_of(tenant)),
        LimitsBody.of(ring.limits.get(tenant, NO_LIMITS)),
        UseBody.of(await host.use(tenant_holder(tenant))),
        ring.policies.get(tenant),
    )
