"""The history for users of the SDK: events one by one, however many pages they are on."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import Final

from sandlot.domain.errors import Unavailable
from sandlot.domain.history.events import Event, parse_kind
from sandlot.domain.history.query import MAX_EVENTS, EventQuery
from sandlot.domain.service import SandboxService

# How long one request waits for the next event.
FOLLOW_WAIT_S: Final = 20.0


def event_query(
    *,
    session: str | None = None,
    thread: str | None = None,
    kinds: Sequence[str] = (),
    since: float | None = None,
    until: float | None = None,
    server: bool = False,
) -> EventQuery:
    return EventQuery(
        session_id=session,
        thread=thread,
        kinds=tuple(parse_kind(kind) for kind in ([kinds] if isinstance(kinds, str) else kinds)),
        since=since,
        until=until,
        limit=MAX_EVENTS,
        server=server,
    )


async def iterate_events(
    service: SandboxService, query: EventQuery, *, follow: bool, partial: bool
) -> AsyncGenerator[Event, None]:
    """Yield all events that match, and with ``follow`` those that are still to come."""
    missing: tuple[str, ...] = ()
    while True:
        page = await service.list_events(query)
        for event in page.events:
            yield event
        missing = page.missing
        query = replace(query, after=page.next)
        if page.more:
            continue
        if not follow:
            break
        query = replace(query, wait_s=FOLLOW_WAIT_S)
    if missing and not partial:
        raise Unavailable(
            f"The history is not complete: {len(missing)} of the fleet's workers did not answer "
            f"({', '.join(missing[:5])}). Retry, or pass partial=True to go on without them.",
            retry_after_s=5.0,
            details={"reason": "workers_missing", "missing": list(missing)},
        )
