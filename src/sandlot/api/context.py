"""What routes are given: the service behind the app, and the parameters that many of them share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final

from fastapi import Depends, Header, Query
from starlette.requests import HTTPConnection

from sandlot.domain.errors import InvalidRequest
from sandlot.domain.service import Access, SandboxService
from sandlot.domain.session import Session

MAX_OFFSET: Final = 2**63 - 1


# A coroutine, because FastAPI would send a plain function to a thread.
async def _service(connection: HTTPConnection) -> SandboxService:
    service: SandboxService = connection.app.state.service
    return service


Service = Annotated[SandboxService, Depends(_service)]
IdempotencyKey = Annotated[str | None, Header(description="The same key again gives the first answer.")]
Offset = Annotated[int, Query(ge=0, le=MAX_OFFSET, description="Output before this byte is not wanted.")]


def access_to(connection: HTTPConnection, session: Session) -> Access | None:
    """The way straight to the session's worker, if this server hands such ways out."""
    access: Callable[[Session], Access | None] | None = connection.app.state.access
    return None if access is None else access(session)


def within(name: str, value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        raise InvalidRequest(f"{name} must be {low} … {high}")
    return value
