"""Pages of sessions: how long one may be, and where the next one begins."""

from __future__ import annotations

import re

from sandlot.domain.errors import InvalidRequest
from sandlot.domain.session import Session

MAX_PAGE = 1000
_CURSOR = re.compile(r"(\d{13}\.\d{6})-(ses_[0-9a-f]{32})")


def check_page(limit: int) -> None:
    if not 0 < limit <= MAX_PAGE:
        raise InvalidRequest(f"limit must be 1 … {MAX_PAGE}")


def cursor(session: Session) -> str:
    """Sorts as the sessions' age does, and by id among those of one instant."""
    return f"{session.created_at:020.6f}-{session.id}"


def parse_cursor(text: str) -> tuple[str, str]:
    """The time as it is written, and the session's id."""
    match = _CURSOR.fullmatch(text)
    if match is None:
        raise InvalidRequest(f"{text!r:.80} is not where a page ended: give back what 'next' said")
    return match[1], match[2]
