"""Cursors: a reader of a fleet gets each event once, whatever the clocks say and whoever is away."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandlot.domain.errors import InvalidRequest
from sandlot.domain.history.events import Event, EventKind
from sandlot.domain.history.merging import merged
from sandlot.domain.history.positions import (
    SETTLED_US,
    US,
    EventTimes,
    Position,
    event_id,
    parse_event_id,
    worker_tag,
)
from sandlot.domain.history.query import EventPage, EventQuery

TIMES = st.integers(0, 2**55)
TAGS = st.text("0123456789abcdef", min_size=8, max_size=8)


@given(TIMES, TAGS)
def test_an_id_says_when_and_where(time_us: int, tag: str) -> None:
    assert parse_event_id(event_id(time_us, tag)) == (time_us, tag)


@given(TIMES, TIMES, TAGS, TAGS)
def test_ids_sort_by_time(first: int, second: int, tag: str, other: str) -> None:
    assert (event_id(first, tag) < event_id(second, other)) == ((first, tag) < (second, other))


@given(st.lists(st.floats(0, 4e9), max_size=30))
def test_times_grow_whatever_the_clock_does(clock: list[float]) -> None:
    times = EventTimes()
    given_out = [times.next(now) for now in clock]
    assert given_out == sorted(set(given_out))


@given(TIMES, st.dictionaries(TAGS, TIMES, max_size=8))
def test_a_cursor_survives_the_wire(floor: int, read: dict[str, int]) -> None:
    position = Position(floor, read)
    assert Position.parse(str(position)) == position


@pytest.mark.parametrize("text", ["", "x", "evt_1", "0" * 13, "0" * 14 + "-", "0" * 14 + "-" + "g" * 22])
def test_other_text_is_no_cursor(text: str) -> None:
    with pytest.raises(InvalidRequest, match="page cursor"):
        EventQuery(after=text)


@dataclass
class Worker:
    """A worker with a clock of its own. ``scanned``: how many events it looks at for a page."""

    id: str
    skew_us: int
    scanned: int
    events: list[Event] = field(default_factory=list)
    times: EventTimes = field(default_factory=EventTimes)
    answers: bool = True

    def record(self, now_us: int, kind: EventKind) -> None:
        time_us = self.times.next((now_us + self.skew_us) / US)
        self.events.append(Event(event_id(time_us, worker_tag(self.id)), 0.0, kind, "t"))

    def page(self, query: EventQuery) -> EventPage | None:
        if not self.answers:
            return None
        tag = worker_tag(self.id)
        after, _ = query.times_us(tag)
        later = [event for event in self.events if parse_event_id(event.id)[0] > after]
        looked_at = later[: self.scanned]
        found = [event for event in looked_at if query.matches(event)][: query.limit]
        position = query.position.after(event.id for event in found)
        if len(found) < query.limit and looked_at:
            position = position.read_to(tag, parse_event_id(looked_at[-1].id)[0])
            return EventPage(tuple(found), str(position), len(later) > len(looked_at))
        return EventPage(tuple(found), str(position), len(found) < len(later))


CREATED, ENDED = EventKind.SESSION_CREATED, EventKind.SESSION_ENDED
# What happens: most often an event, or a reader that asks for so many.
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["event", "event", "event", "read", "read", "away", "back", "pass"]),
        st.integers(0, 3),
        st.sampled_from([CREATED, CREATED, ENDED]),
    ),
    min_size=3,
    max_size=40,
)


@settings(max_examples=500)
@given(
    STEPS,
    st.lists(st.integers(-SETTLED_US // 2 + US, SETTLED_US // 2 - US), min_size=4, max_size=4),
    st.integers(1, 5),
)
def test_each_event_is_read_once(
    steps: list[tuple[str, int, EventKind]], skews: list[int], scanned: int
) -> None:
    workers = [Worker(f"w{number}", skew, scanned) for number, skew in enumerate(skews)]
    now_us, cursor, read = 1_000 * US, None, []

    def ask(limit: int) -> EventPage:
        nonlocal cursor
        query = EventQuery(kinds=(CREATED,), after=cursor, limit=limit)
        page = merged(query, {worker.id: worker.page(query) for worker in workers})
        assert page.missing == tuple(worker.id for worker in workers if not worker.answers)
        read.extend(event.id for event in page.events)
        cursor = page.next
        return page

    for what, number, kind in steps:
        if what == "event":
            workers[number].record(now_us, kind)
        elif what == "read":
            ask(number + 1)
        elif what == "pass":
            now_us += number * 30 * US
        else:
            workers[number].answers = what == "back"
    for worker in workers:
        worker.answers = True
    while ask(3).more:
        pass
    expected = [event.id for worker in workers for event in worker.events if event.kind == CREATED]
    assert sorted(read) == sorted(expected)


def test_a_cursor_stays_short() -> None:
    """Workers that were read to their end, and have had no event for a while, are not in it."""
    position = Position()
    for number in range(1000):
        position = position.after([event_id((1000 + number) * US, worker_tag(f"w{number}"))])
    assert len(position.read_us) == SETTLED_US // US
