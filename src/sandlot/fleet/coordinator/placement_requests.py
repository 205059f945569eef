"""Builds the placement request of a create, from the client's request and the catalogue. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sandlot.domain.callers.limits import Allowance
from sandlot.domain.callers.principal import Principal
from sandlot.domain.capacity.limits import Limits, grant_limits
from sandlot.domain.capacity.machine import units
from sandlot.domain.environment import unknown_environment_error
from sandlot.domain.service import Catalogue
from sandlot.domain.session import DEFAULT_ENVIRONMENT, CreateSession, Session
from sandlot.fleet.directory.contract import PlacementRequest


def placement_request(
    catalogue: Catalogue, principal: Principal, request: CreateSession, allowances: Sequence[Allowance]
) -> PlacementRequest:
    name = request.environment or DEFAULT_ENVIRONMENT
    environment = next((known for known in catalogue.environments if known.name == name), None)
    if environment is None:
        raise unknown_environment_error(name, {known.name: known.tier for known in catalogue.environments})
    defaults = environment.limits
    # Check the limits before looking for a place: limits above the ceiling must not read as "full".
    if environment.ceilings is None:
        limits = request.limits.apply(defaults)
    else:
        limits = grant_limits(request.limits, defaults, environment.ceilings, name)
    return PlacementRequest(
        principal.tenant,
        name,
        thread=request.thread,
        idempotency_key=request.idempotency_key,
        created_by=principal.key_id,
        limits=limits,
        allowances=tuple(allowances),
        units=units(limits, defaults),
    )


def takeover_request(catalogue: Catalogue, request: PlacementRequest, lost: Session) -> PlacementRequest:
    """Change a request so that it asks for a new sandbox for a session whose worker is gone."""
    defaults = _default_limits(catalogue, lost.environment)
    return replace(
        request,
        takes_over=lost.id,
        environment=lost.environment,
        # It gets new files, which any worker has.
        only=None,
        # If no worker offers the environment any more, the directory reports that.
        units=1 if defaults is None else units(lost.limits, defaults),
    )


def _default_limits(catalogue: Catalogue, environment: str) -> Limits | None:
    return next((known.limits for known in catalogue.environments if known.name == environment), None)
