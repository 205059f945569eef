"""Lists of sandboxes, filtered and in pages.

The service lists oldest first. E2B's default is newest first, so all of a tenant's sessions are read, and the
page is cut out of those that match.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl, unquote

from starlette.responses import Response

from sandlot.api.e2b.control.calls import ControlCall
from sandlot.api.e2b.sessions import is_running, public_metadata
from sandlot.api.responses.json import json_response
from sandlot.api.responses.lists import count_against_budget
from sandlot.domain.errors import InvalidRequest
from sandlot.domain.paging import MAX_PAGE, parse_place, place_of
from sandlot.domain.session import Session

DEFAULT_LIMIT: Final = 100
MAX_LIMIT: Final = 1000
NEXT_HEADER: Final = "x-next-token"
_STATES: Final = ("running", "paused")
_ORDERS: Final = ("asc", "desc")


async def list_sandboxes(call: ControlCall) -> Response:
    query = call.query("metadata", "state", "order", "startedAfter", "template", "nextToken", "limit")
    found = [session for session in await _all_sessions(call) if _matches(session, query)]
    return paged(call, found, query)


async def list_running(call: ControlCall) -> Response:
    """The first version of the list, without pages."""
    query = call.query("metadata")
    found = [
        session for session in await _all_sessions(call) if _matches(session, {**query, "state": "running"})
    ]
    return json_response([call.listed(session) for session in reversed(found)])


async def _all_sessions(call: ControlCall) -> list[Session]:
    sessions: list[Session] = []
    after: str | None = None
    while True:
        page = await call.service.list_sessions(after=after, limit=MAX_PAGE)
        sessions += await count_against_budget(_given(page.sessions))
        after = page.next
        if after is None:
            return sessions


async def _given(sessions: tuple[Session, ...]) -> tuple[Session, ...]:
    return sessions


def paged(call: ControlCall, oldest_first: list[Session], query: Mapping[str, str]) -> Response:
    limit = limit_of(query)
    newest_first = _one_of(query.get("order", "desc"), "order", _ORDERS) == "desc"
    ordered = list(reversed(oldest_first)) if newest_first else oldest_first
    token = query.get("nextToken")
    if token:
        parse_place(token, "ses")
        ordered = [
            each for each in ordered if (place_of(each) < token) == newest_first and place_of(each) != token
        ]
    page = ordered[:limit]
    headers = {NEXT_HEADER: place_of(page[-1])} if len(ordered) > limit else {}
    return json_response([call.listed(session) for session in page], headers=headers)


def limit_of(query: Mapping[str, str]) -> int:
    text = query.get("limit", str(DEFAULT_LIMIT))
    if not (text.isascii() and text.isdigit() and len(text) < 6 and 1 <= int(text) <= MAX_LIMIT):
        raise InvalidRequest(f"limit must be between 1 and {MAX_LIMIT}.")
    return int(text)


def _matches(session: Session, query: Mapping[str, str]) -> bool:
    states = [_one_of(each, "state", _STATES) for each in query.get("state", "").split(",") if each]
    if states and ("running" if is_running(session) else "paused") not in states:
        return False
    if query.get("template") and session.environment != query["template"]:
        return False
    if query.get("startedAfter") and session.lifetime_from <= _time(query["startedAfter"]):
        return False
    own = public_metadata(session)
    return all(own.get(name) == value for name, value in _metadata(query.get("metadata", "")))


def _metadata(text: str) -> list[tuple[str, str]]:
    """The SDKs quote each name and value, then the pairs as a form, then the form as a value of the query."""
    return [(unquote(name), unquote(value)) for name, value in parse_qsl(text, keep_blank_values=True)]


def _one_of(text: str, name: str, known: tuple[str, ...]) -> str:
    if text not in known:
        raise InvalidRequest(f"{name} must be one of {', '.join(known)}, not {text!r:.40}.")
    return text


def _time(text: str) -> float:
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise InvalidRequest("startedAfter must be a time as in 2026-01-31T12:00:00Z.") from None
