"""What a session is in E2B's terms: states, times, and the choices that only E2B's API knows.

Those choices are kept in the session's metadata, under names that clients of this API neither see nor set.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Final

from sandlot.domain.errors import InvalidRequest
from sandlot.domain.session import Session, SessionState

_OWN: Final = "sandlot.e2b."
AUTO_RESUME: Final = _OWN + "auto-resume"
# What a session without an end is said to have left.
_FOREVER_S: Final = 100 * 365 * 24 * 3600.0


def resumes_by_itself(session: Session) -> bool:
    return session.metadata.get(AUTO_RESUME) == "true"


def is_running(session: Session) -> bool:
    """Whether it has a sandbox. A lost one resumes like a paused one: with its files in a new sandbox."""
    return session.state in (SessionState.ACTIVE, SessionState.UNRESPONSIVE)


def ends_at(session: Session) -> float:
    expires_at = session.expires_at
    if session.state is SessionState.ACTIVE and session.lifetime_s is not None:
        expires_at = session.lifetime_from + session.lifetime_s
    return session.last_active_at + _FOREVER_S if expires_at is None else expires_at


def public_metadata(session: Session) -> dict[str, str]:
    return {name: value for name, value in session.metadata.items() if not name.startswith(_OWN)}


def own_metadata(metadata: Mapping[str, str], *, auto_resume: bool) -> dict[str, str]:
    """The metadata of a new session: the client's, and our choices."""
    for name in metadata:
        if name.startswith(_OWN):
            raise InvalidRequest(f"Metadata must not begin with {_OWN!r}: the server keeps its own there.")
    return {**metadata, AUTO_RESUME: "true"} if auto_resume else dict(metadata)


def timestamp(seconds: float) -> str:
    """RFC 3339 with an offset."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="milliseconds")
