"""Merges the pages of a fleet's workers into one. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile
from typing import Final

from sandlot.domain.history.events import Event
from sandlot.domain.history.positions import Position, parse_event_id, worker_tag
from sandlot.domain.history.query import EventPage, EventQuery

_ENDLESS: Final = 2**63


def merged(query: EventQuery, pages: Mapping[str, EventPage | None]) -> EventPage:
    """The page of a fleet. ``pages``: by worker id, what each worker answered; None for nothing.

    Workers that did not answer are named, and keep their place in the cursor: their events follow once they
    answer again.
    """
    before = query.position
    answers = {worker_tag(worker): page for worker, page in pages.items() if page is not None}
    reached = {tag: Position.parse(page.next).of(tag) for tag, page in answers.items()}
    # Up to here it is known what each worker has: one with more events may have some right after.
    known_us = min((reached[tag] for tag, page in answers.items() if page.more), default=_ENDLESS)
    found = sorted((event for page in answers.values() for event in page.events), key=_order)
    events = list(takewhile(lambda event: _order(event)[0] <= known_us, found))[: query.limit]
    unread = [_order(event) for event in found[len(events) :]]
    position = before.after(event.id for event in events)
    # No worker counts as read beyond the first event that was not: the floor must not pass that event.
    ceiling_us = min(known_us, unread[0][0] - 1) if unread else known_us
    for tag in answers:
        position = position.read_to(tag, min(reached[tag], ceiling_us))
    missing = sorted(worker for worker, page in pages.items() if page is None)
    unfinished = {tag for _, tag in unread} | {tag for tag, page in answers.items() if page.more}
    position = position.settled(
        before, away={worker_tag(worker) for worker in missing}, unfinished=unfinished
    )
    return EventPage(tuple(events), str(position), bool(unfinished), tuple(missing))


def _order(event: Event) -> tuple[int, str]:
    return parse_event_id(event.id)
