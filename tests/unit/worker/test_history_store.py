"""The history's file: bounded, fast to search, and honest about what it could not take."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.unit.worker.conftest import full_disk

from sandlot.domain.callers.principal import OWNER, Principal
from sandlot.domain.history.events import Event, EventKind
from sandlot.domain.history.query import EventQuery
from sandlot.domain.history.recorder import Subject
from sandlot.domain.ids import new_session_id
from sandlot.worker.history import store as stores
from sandlot.worker.history import writer as writers
from sandlot.worker.history.history import History
from sandlot.worker.history.options import HistoryOptions
from sandlot.worker.recordings.options import RecordingOptions
from sandlot.worker.recordings.recordings import Recordings

MIB = 1024 * 1024


def a_history(data_dir: Path, **options: object) -> History:
    unrecorded = Recordings(data_dir, RecordingOptions(enabled=False))
    return History(data_dir, "w1", HistoryOptions(**options), unrecorded)  # type: ignore[arg-type]


@pytest.fixture
async def history(data_dir: Path) -> AsyncIterator[History]:
    history = a_history(data_dir)
    await history.open()
    yield history
    await history.close()


def fill(history: History, count: int, *, tenant: str = "default", session: str | None = None) -> None:
    about = Subject(tenant, session or new_session_id(), "thread", "exec")
    kinds = itertools.cycle([(EventKind.EXEC_STARTED, "command"), (EventKind.EXEC_ENDED, "unseen")])
    for number, (kind, detail) in zip(range(count), kinds, strict=False):
        history.recorder.record(kind, about, {detail: f"command {number}"})


def text_of(event: Event) -> object:
    (text,) = event.details.values()
    return text


async def read_all(history: History, query: EventQuery, caller: Principal = OWNER) -> list[str]:
    found: list[str] = []
    while True:
        page = await history.page(caller, query)
        found += [event.id for event in page.events]
        if not page.more:
            return found
        query = EventQuery(
            session_id=query.session_id,
            thread=query.thread,
            kinds=query.kinds,
            since=query.since,
            until=query.until,
            limit=query.limit,
            after=page.next,
        )


async def test_pages_have_every_event_once_by_every_filter(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "SCANNED", 7)
    mine, other = new_session_id(), new_session_id()
    fill(history, 40, session=mine)
    fill(history, 20, session=other)
    fill(history, 30, tenant="stranger", session=mine)
    everything = (await history.page(OWNER, EventQuery(limit=1000))).events
    assert len(everything) == 60
    middle = everything[30].at
    for limit, session_id, thread, kinds, since in itertools.product(
        (1, 7, 1000),
        (None, mine, new_session_id()),
        (None, "thread", "another"),
        ((), (EventKind.EXEC_ENDED,), (EventKind.EXEC_ENDED, EventKind.EXEC_STARTED), (EventKind.KEY_USED,)),
        (None, middle),
    ):
        query = EventQuery(session_id=session_id, thread=thread, kinds=kinds, since=since, limit=limit)
        expected = [
            event.id for event in everything if query.matches(event) and (since is None or event.at >= since)
        ]
        assert await read_all(history, query) == expected, query


async def test_the_end_of_a_range_is_not_in_it(history: History) -> None:
    now = round(history.recorder.clock())
    clock = iter([now - 30.0, now - 20.0, now - 10.0])
    history.recorder.clock = lambda: next(clock)
    fill(history, 3)
    history.recorder.clock = lambda: now
    page = await history.page(OWNER, EventQuery(since=now - 20.0, until=now - 10.0))
    assert [event.at for event in page.events] == [now - 20.0]


async def test_the_file_stays_within_its_size(data_dir: Path) -> None:
    """10,000 commands are 20,000 events, about 8 MB: far more than the file may have."""
    history = a_history(data_dir, max_bytes=2 * MIB)
    await history.open()
    for _ in range(20):
        fill(history, 1000)
        await history.page(OWNER, EventQuery(limit=1))
        size = sum(path.stat().st_size for path in data_dir.glob("history.sqlite3*"))
        # The file, and its write-ahead log, which SQLite empties at 4 MiB.
        assert size < 8 * MIB
    events = (await history.page(OWNER, EventQuery(since=0, limit=1000))).events
    assert events
    assert text_of(events[0]) != "command 0"
    await history.close()
    assert (data_dir / "history.sqlite3").stat().st_size <= 3 * MIB


async def test_nobody_pushes_out_another_tenants_events(data_dir: Path) -> None:
    history = a_history(data_dir, max_bytes=2 * MIB)
    await history.open()
    for _ in range(15):
        fill(history, 20, tenant="quiet")
        fill(history, 1000, tenant="noisy")
        await history.page(OWNER, EventQuery(limit=1))
    kept = {}
    for tenant in ("quiet", "noisy"):
        kept[tenant] = await read_all(history, EventQuery(limit=1000), Principal(tenant))
    assert len(kept["quiet"]) == 15 * 20
    assert 300 < len(kept["noisy"]) < 15_000
    await history.close()


async def test_old_events_are_deleted(data_dir: Path) -> None:
    history = a_history(data_dir, max_age_s=100.0)
    await history.open()
    now = history.recorder.clock()
    history.recorder.clock = lambda: now - 200
    fill(history, 1200)
    await history.close()
    history = a_history(data_dir, max_age_s=100.0)
    await history.open()
    fill(history, 1)
    await history.page(OWNER, EventQuery())
    await history.page(OWNER, EventQuery())
    assert len((await history.page(OWNER, EventQuery(limit=1000))).events) == 1
    await history.close()


async def test_what_the_disk_cannot_take_is_counted(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    await history.page(OWNER, EventQuery())  # the file has its first pages
    monkeypatch.setattr(writers, "RETRY_S", 0.05)
    monkeypatch.setattr(writers, "MAX_QUEUED_BYTES", 100_000)
    with full_disk():
        fill(history, 50, tenant="first")
        fill(history, 500, tenant="second")
        fill(history, 7, tenant="third")
        await asyncio.sleep(0)
    kept = {
        tenant: [
            event
            for event in (await history.page(Principal(tenant), EventQuery(limit=1000))).events
            if event.kind != EventKind.HISTORY_DROPPED
        ]
        for tenant in ("first", "second", "third")
    }
    assert len(kept["first"]) == 50
    assert 0 < len(kept["second"]) < 500
    assert kept["third"] == []
    dropped = {}
    for tenant in kept:
        page = await history.page(Principal(tenant), EventQuery(kinds=(EventKind.HISTORY_DROPPED,)))
        dropped[tenant] = sum(int(event.details["events"]) for event in page.events)
    assert dropped == {"first": 0, "second": 500 - len(kept["second"]), "third": 7}
    assert history.figures is not None
    assert history.figures.dropped == sum(dropped.values())


_KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from tests.unit.worker.test_history_store import a_history, fill
from sandlot.domain.callers.principal import OWNER
from sandlot.domain.history.query import EventQuery

async def main():
    history = a_history(Path(sys.argv[1]))
    await history.open()
    fill(history, 10)
    await history.page(OWNER, EventQuery())
    fill(history, 5)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


async def test_a_killed_worker_loses_the_last_batch_at_most(data_dir: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", _KILLED, str(data_dir)], check=False, env=os.environ)
    assert killed.returncode == -signal.SIGKILL
    history = a_history(data_dir)
    await history.open()
    events = (await history.page(OWNER, EventQuery())).events
    assert [text_of(event) for event in events] == [f"command {number}" for number in range(10)]
    fill(history, 1)
    later = (await history.page(OWNER, EventQuery())).events
    assert (len(later), later[:10]) == (11, events)
    await history.close()


async def test_ids_grow_even_if_the_clock_went_back(data_dir: Path) -> None:
    ids = []
    for offset in (0.0, -3600.0):
        history = a_history(data_dir)
        await history.open()
        now = history.recorder.clock()
        history.recorder.clock = lambda at=now + offset: at  # type: ignore[misc]
        fill(history, 2)
        ids = [event.id for event in (await history.page(OWNER, EventQuery())).events]
        await history.close()
    assert len(ids) == 4
    assert ids == sorted(ids)


def test_only_its_owner_can_read_the_file(data_dir: Path) -> None:
    async def write() -> None:
        history = a_history(data_dir)
        await history.open()
        await history.close()

    asyncio.run(write())
    assert (data_dir / "history.sqlite3").stat().st_mode & 0o777 == 0o600
