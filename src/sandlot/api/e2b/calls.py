"""``SandboxCall``: one request about the inside of a sandbox, and what all of its handlers need."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from sandlot.api.e2b.errors import SandboxGone
from sandlot.api.e2b.sessions import resumes_by_itself
from sandlot.domain.e2b.names import sandbox_id_of
from sandlot.domain.errors import Forbidden, InvalidRequest, NotFound, SandboxLost
from sandlot.domain.service import SandboxService
from sandlot.domain.session import Session, SessionState

# The one user that a sandbox has. E2B calls it so too, or not at all.
SANDBOX_USER: Final = "sandboxuser"
_USERS: Final = ("", "user", SANDBOX_USER)


@dataclass(frozen=True, slots=True)
class SandboxCall:
    request: Request
    service: SandboxService
    session: Session

    @property
    def session_id(self) -> str:
        return self.session.id

    @property
    def sandbox_id(self) -> str:
        return sandbox_id_of(self.session.id)

    def header(self, name: str) -> str | None:
        return self.request.headers.get(name)

    def check_user(self, name: str | None = None) -> None:
        """Refuse to act as somebody else than the sandbox's user. ``name``: None for the request's own."""
        user = _basic_user(self.header("authorization")) if name is None else name
        if user in _USERS:
            return
        if user == "root":
            raise Forbidden(
                "Sandboxes have no root. Leave out the user, and put what needs root into the environment's "
                "image.",
                details={"user": user},
            )
        raise InvalidRequest(f"There is no user {user[:64]!r} in the sandbox. Leave out the user.")


Handler = Callable[[SandboxCall], Awaitable[Response]]


async def usable_session(service: SandboxService, session_id: str) -> Session:
    """The session, if its sandbox can be used now. ``SandboxGone`` otherwise."""
    sandbox_id = sandbox_id_of(session_id)
    try:
        session = await service.get_session(session_id)
    except NotFound as error:  # and SessionEnded
        raise SandboxGone(sandbox_id, _why(error)) from error
    if session.state is SessionState.LOST:
        reason = "" if session.loss is None else session.loss.reason
        raise SandboxGone(
            sandbox_id, f"it is lost ({reason[:200]}). Connect to it to continue with its files."
        )
    if session.state is SessionState.HIBERNATED and not resumes_by_itself(session):
        raise SandboxGone(sandbox_id, "it is paused. Connect to it to resume it.")
    return session


def gone(sandbox_id: str, error: NotFound | SandboxLost) -> SandboxGone:
    return SandboxGone(sandbox_id, _why(error))


def _why(error: NotFound | SandboxLost) -> str:
    return error.message[:300]


def _basic_user(header: str | None) -> str:
    if header is None or header[:6].lower() != "basic ":
        return ""
    try:
        user, _, _ = base64.b64decode(header[6:], validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        raise InvalidRequest("The Authorization header is not valid Basic authentication.") from None
    return user
