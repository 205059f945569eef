"""Pages of sessions: how long a page may be, and where the next page begins."""

from __future__ import annotations

import re
from collections.abc import Iterable

from sandlot.domain.errors import InvalidRequest
from sandlot.domain.service import SessionPage
from sandlot.domain.session import Session

MAX_PAGE = 1000
_CURSOR = re.compile(r"(\d{13}\.\d{6})-(ses_[0-9a-f]{32})")


def check_page(limit: int) -> None:
    if not 0 < limit <= MAX_PAGE:
        raise InvalidRequest(f"limit must be between 1 and {MAX_PAGE}.")


def cursor(session: Session) -> str:
    """A page cursor. Cursors sort by the sessions' creation time, then by id."""
    return f"{session.created_at:020.6f}-{session.id}"


def parse_cursor(text: str) -> tuple[str, str]:
    """The creation time, as written in the cursor, and the session's id."""
    match = _CURSOR.fullmatch(text)
    if match is None:
        raise InvalidRequest(
            f"{text!r:.80} is not a page cursor. Pass the 'next' value of the previous page."
        )
    return match[1], match[2]


def page_of(sessions: Iterable[Session], *, after: str | None, limit: int) -> SessionPage:
    """The page of these sessions that follows the cursor ``after``, or the first page."""
    check_page(limit)
    if after is not None:
        parse_cursor(after)
    found = sorted((session for session in sessions if after is None or cursor(session) > after), key=cursor)
    return SessionPage(tuple(found[:limit]), cursor(found[limit - 1]) if len(found) > limit else None)
