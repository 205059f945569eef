"""What waits to be told: the latest of each session, and never more than a bound."""

from __future__ import annotations

from dataclasses import replace

from sandlot.domain.session import Session
from sandlot.fleet.directory.contract import SessionEntry
from sandlot.fleet.membership.outbox import Outbox
from sandlot.testing.directory_suite.harness import a_session


def said(session: Session, **metadata: str) -> SessionEntry:
    return SessionEntry(replace(session, metadata=metadata))


async def test_of_each_session_only_the_latest_waits() -> None:
    outbox, one, two = Outbox(), a_session(), a_session()
    first = outbox.put(said(one, at="1"))
    outbox.put(said(two))
    second = outbox.put(said(one, at="2"))
    items = outbox.first(10)
    assert [item.session_id for item in items] == [one.id, two.id]
    assert items[0].entry == said(one, at="2")
    outbox.done(items)
    assert first.is_set()
    assert second.is_set()
    assert not outbox


async def test_what_comes_while_the_earlier_is_being_written_stays() -> None:
    outbox, session = Outbox(), a_session()
    waiting = outbox.put(said(session, at="1"))
    writing = outbox.first(10)
    outbox.put(said(session, at="2"))
    outbox.done(writing)
    assert not waiting.is_set()
    (item,) = outbox.first(10)
    assert item.entry == said(session, at="2")


async def test_what_waits_already_is_later_than_a_copy_of_all() -> None:
    outbox, session = Outbox(), a_session()
    outbox.put(said(session, at="2"))
    outbox.put_unless_waiting(said(session, at="1"))
    (item,) = outbox.first(10)
    assert item.entry == said(session, at="2")


async def test_session_that_lives_after_all_is_not_forgotten() -> None:
    outbox, session = Outbox(), a_session()
    outbox.forget(session.id)
    outbox.put(said(session))
    (item,) = outbox.first(10)
    assert item.entry == said(session)


async def test_is_bounded_and_says_that_it_was_too_much() -> None:
    outbox = Outbox(max_waiting=100)
    events = [outbox.put(said(a_session())) for _ in range(100)]
    assert not outbox.overflowed
    outbox.put(said(a_session()))
    assert outbox.overflowed
    assert len(outbox) == 1
    assert all(event.is_set() for event in events), "nobody waits for what will not be written"


async def test_what_cannot_be_written_goes_behind_the_others() -> None:
    outbox, one, two = Outbox(), a_session(), a_session()
    outbox.put(said(one))
    outbox.put(said(two))
    outbox.move_to_end(outbox.first(1))
    assert [item.session_id for item in outbox.first(10)] == [two.id, one.id]
