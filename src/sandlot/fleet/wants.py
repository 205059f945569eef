"""What a create asks of the directory, from what its client asked for and what the fleet offers. Pure."""

from __future__ import annotations

from dataclasses import replace

from sandlot.domain.environment import no_environment
from sandlot.domain.limits import Limits, granted
from sandlot.domain.machine import units
from sandlot.domain.service import Catalogue
from sandlot.domain.session import DEFAULT_ENVIRONMENT, CreateSession, Session
from sandlot.fleet.directory import Want


def want_of(catalogue: Catalogue, tenant: str, request: CreateSession, max_sessions: int | None) -> Want:
    asked = request.environment or DEFAULT_ENVIRONMENT
    offered = next((known for known in catalogue.environments if known.name == asked), None)
    if offered is None:
        raise no_environment(asked, {known.name: known.tier for known in catalogue.environments})
    usual = offered.limits
    # Before a place is looked for: what no worker may give is not "full".
    if offered.ceilings is None:
        wanted = request.limits.apply(usual)
    else:
        wanted = granted(request.limits, usual, offered.ceilings, asked)
    return Want(
        tenant,
        asked,
        thread=request.thread,
        idempotency_key=request.idempotency_key,
        max_sessions=max_sessions,
        units=units(wanted, usual),
    )


def taking_over(catalogue: Catalogue, want: Want, lost: Session) -> Want:
    """A new sandbox for a session whose worker is gone."""
    usual = _limits_of(catalogue, lost.environment)
    return replace(
        want,
        takes_over=lost.id,
        environment=lost.environment,
        # If its environment is not offered any more, the directory says so.
        units=1 if usual is None else units(lost.limits, usual),
    )


def _limits_of(catalogue: Catalogue, environment: str) -> Limits | None:
    return next((known.limits for known in catalogue.environments if known.name == environment), None)
