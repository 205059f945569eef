"""Questions to a history of many events."""

from __future__ import annotations

import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bench.rig import p50, progress
from sandlot.domain.callers.principal import Principal
from sandlot.domain.execution import ExecRequest, Exited
from sandlot.domain.history.events import EventKind
from sandlot.domain.history.query import EventQuery
from sandlot.domain.ids import new_session_id
from sandlot.domain.session import Session
from sandlot.worker.history.history import History
from sandlot.worker.history.options import HistoryOptions
from sandlot.worker.recordings.options import RecordingOptions
from sandlot.worker.recordings.recordings import Recordings

TENANTS = 20
SESSIONS_OF_EACH = 50
TIMES = 20
BATCH = 5000


@dataclass(frozen=True)
class Filled:
    tenant: str
    session: Session
    middle: float


async def measure(events: int) -> dict[str, float]:
    """The longest of several runs of each question, in milliseconds."""
    folder = Path(tempfile.mkdtemp(prefix="sandlot-bench-"))
    unrecorded = Recordings(folder, RecordingOptions(enabled=False))
    history = History(folder, "bench", HistoryOptions(max_bytes=64 * 1024**3), unrecorded)
    try:
        await history.open()
        began = time.perf_counter()
        filled = await _fill(history, events)
        spent_s = time.perf_counter() - began
        size = sum(path.stat().st_size for path in folder.iterdir())
        figures = {
            "events": float(events),
            "events_per_s": events / spent_s,
            "bytes_per_event": size / events,
        }
        for name, query in _questions(filled).items():
            figures[f"{name}_ms"] = await _longest(history, filled.tenant, query)
        return figures
    finally:
        await history.close()
        shutil.rmtree(folder, ignore_errors=True)


async def _fill(history: History, events: int) -> Filled:
    """Commands of many sessions by turns. The first tenant has as many events as all others together."""
    progress(f"recording {events} events")
    busy = [_session(0) for _ in range(SESSIONS_OF_EACH)]
    others = [_session(tenant) for tenant in range(1, TENANTS) for _ in range(SESSIONS_OF_EACH)]
    recorder, caller = history.recorder, Principal("", key_id="akeyofsomebody")
    exited = Exited(0, 0, "exited", output_bytes=120, duration_ms=12.5, user_ms=3, peak_memory_bytes=1 << 20)
    middle = 0.0
    for number in range(events // 2):
        sessions = busy if number % 2 else others
        session = sessions[number // 2 % len(sessions)]
        request = ExecRequest(command=f"python3 script.py --step {number} --out /workspace/results")
        recorder.exec_ended(recorder.exec_started(session, request, {}, caller), exited)
        if number == events // 4:
            middle = recorder.clock()
            recorder.session_lost(busy[0])  # a rare kind, among all the others
        if number % (BATCH // 2) == 0:
            await history.page(caller, EventQuery(limit=1))
    await history.page(caller, EventQuery(limit=1))
    return Filled("tenant-0", busy[0], middle)


def _session(tenant: int) -> Session:
    name = new_session_id()
    return Session(name, "base", 1.0, 1.0, tenant=f"tenant-{tenant}", thread=f"thread-of-{name}")


def _questions(filled: Filled) -> dict[str, EventQuery]:
    session, thread = filled.session.id, filled.session.thread
    rare, common = (EventKind.SESSION_LOST,), (EventKind.EXEC_ENDED,)
    return {
        "first_page": EventQuery(),
        "largest_page": EventQuery(limit=1000),
        "from_the_middle": EventQuery(since=filled.middle),
        "session": EventQuery(session_id=session),
        "thread": EventQuery(thread=thread),
        "rare_kind": EventQuery(kinds=rare),
        "common_kind_from_the_middle": EventQuery(kinds=common, since=filled.middle),
        "all_kinds": EventQuery(kinds=tuple(EventKind), limit=1000),
        "rare_kind_of_a_session": EventQuery(session_id=session, kinds=rare),
        "unknown_session": EventQuery(session_id=new_session_id()),
        "unknown_thread": EventQuery(thread="nobody"),
        "the_end": EventQuery(since=time.time() + 3600),
    }


async def _longest(history: History, tenant: str, query: EventQuery) -> float:
    spent = []
    for _ in range(TIMES):
        began = time.perf_counter()
        await history.page(Principal(tenant), query)
        spent.append((time.perf_counter() - began) * 1000)
    progress(f"median {p50(spent):.1f} ms, longest {max(spent):.1f} ms")
    return max(spent)
