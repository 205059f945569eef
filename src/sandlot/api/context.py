"""What routes receive: the service behind the app, and the parameters that many routes share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final

from fastapi import Depends, Header, Query
from starlette.requests import HTTPConnection

from sandlot.domain.callers.principal import Principal
from sandlot.domain.errors import InvalidRequest
from sandlot.domain.service import Access, SandboxHost, SandboxService
from sandlot.domain.session import Session
from sandlot.domain.text.suggestions import did_you_mean

MAX_OFFSET: Final = 2**63 - 1

AccessGrant = Callable[[Principal, Session], Access | None]


# Coroutines, because FastAPI would run plain functions in a thread.
async def _principal(connection: HTTPConnection) -> Principal:
    return principal_of(connection)


async def _service(connection: HTTPConnection) -> SandboxService:
    host: SandboxHost = connection.app.state.host
    return host.acting_for(principal_of(connection))


async def _host(connection: HTTPConnection) -> SandboxHost:
    host: SandboxHost = connection.app.state.host
    return host


Caller = Annotated[Principal, Depends(_principal)]
# The service that acts for the caller.
Service = Annotated[SandboxService, Depends(_service)]
Host = Annotated[SandboxHost, Depends(_host)]
IdempotencyKey = Annotated[
    str | None, Header(description="Using the same key again returns the first result.")
]
Offset = Annotated[int, Query(ge=0, le=MAX_OFFSET, description="Skip output before this byte.")]


def access_to(connection: HTTPConnection, session: Session) -> Access | None:
    """Direct access to the session's worker, if this server grants it."""
    access: AccessGrant | None = connection.app.state.access
    return None if access is None else access(principal_of(connection), session)


def principal_of(connection: HTTPConnection) -> Principal:
    """The caller, as the edge admitted it."""
    principal = connection.scope["state"]["principal"]
    assert isinstance(principal, Principal)
    return principal


def check_parameters(connection: HTTPConnection, known: tuple[str, ...]) -> None:
    """Refuse unknown parameters: a filter with a typing error would show everything."""
    for name in connection.query_params:
        if name not in known:
            raise InvalidRequest(
                f"Unknown parameter {name!r:.80}.{did_you_mean(name[:80], known)} Parameters are: "
                f"{', '.join(known)}."
            )


def check_range(name: str, value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        raise InvalidRequest(f"{name} must be between {low} and {high}.")
    return value
