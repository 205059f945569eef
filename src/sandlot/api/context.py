"""What routes receive: the service behind the app, and the parameters that many routes share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final

from fastapi import Depends, Header, Query
from starlette.requests import HTTPConnection

from sandlot.domain.errors import InvalidRequest
from sandlot.domain.service import Access, SandboxService
from sandlot.domain.session import Session

MAX_OFFSET: Final = 2**63 - 1


# A coroutine, because FastAPI would run a plain function in a thread.
async def _service(connection: HTTPConnection) -> SandboxService:
    service: SandboxService = connection.app.state.service
    return service


Service = Annotated[SandboxService, Depends(_service)]
IdempotencyKey = Annotated[
    str | None, Header(description="Using the same key again returns the first result.")
]
Offset = Annotated[int, Query(ge=0, le=MAX_OFFSET, description="Skip output before this byte.")]


def access_to(connection: HTTPConnection, session: Session) -> Access | None:
    """Direct access to the session's worker, if this server grants it."""
    access: Callable[[Session], Access | None] | None = connection.app.state.access
    return None if access is None else access(session)


def check_range(name: str, value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        raise InvalidRequest(f"{name} must be between {low} and {high}.")
    return value
