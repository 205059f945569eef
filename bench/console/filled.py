"""A server whose worker has many sessions and a long history: ``python -m bench.console.filled serve``.

The sessions hibernate, so they need no containers. The events are a day's, recorded by the worker's
own recorder into its own file. A tenth of them belong to one session.
"""

from __future__ import annotations

import asyncio
import os
import time
from functools import partial
from pathlib import Path
from typing import Final

from sandlot.cli.main import main
from sandlot.domain.callers.principal import OWNER
from sandlot.domain.execution import ExecRequest, Exited
from sandlot.domain.history.query import EventQuery
from sandlot.domain.ids import new_session_id
from sandlot.domain.session import Session, SessionState
from sandlot.wiring.worker import database_in
from sandlot.worker.history.history import History
from sandlot.worker.history.options import HistoryOptions
from sandlot.worker.recordings.options import RecordingOptions
from sandlot.worker.recordings.recordings import Recordings
from sandlot.worker.store.database import SessionRecord, Store

SESSIONS: Final = "BENCH_CONSOLE_SESSIONS"
EVENTS: Final = "BENCH_CONSOLE_EVENTS"
DAY_S: Final = 86_400.0
# The session that has every tenth event, by its thread.
BUSY_THREAD: Final = "busy-thread"
BUSY_SHARE: Final = 10
# The recorder's queue is bounded, so it is emptied now and then.
BATCH: Final = 2_000


def sessions_of(count: int, now: float) -> list[Session]:
    """The busy session is the newest, as a conversation that goes on now would be."""
    threads = [*(f"thread-{number:04}" for number in range(count - 1)), BUSY_THREAD]
    began = [now - DAY_S + DAY_S * number / count for number in range(count)]
    return [
        Session(
            new_session_id(),
            "base",
            created,
            now,
            thread=thread,
            state=SessionState.HIBERNATED,
            metadata={"user": f"person-{number % 97}"},
        )
        for number, (thread, created) in enumerate(zip(threads, began, strict=True))
    ]


async def fill(folder: Path, worker_id: str, sessions: list[Session], events: int) -> None:
    store = Store(database_in(folder), worker_id)
    await store.open()
    await store.save(SessionRecord(session) for session in sessions)
    await store.close()
    unrecorded = Recordings(folder, RecordingOptions(enabled=False))
    history = History(folder, worker_id, HistoryOptions(), unrecorded)
    await history.open()
    recorder = history.recorder
    began, now = sessions[0].created_at, time.time()
    commands = (events - len(sessions)) // 2
    exited = Exited(0, 0, "exited", output_bytes=120, duration_ms=12.5, user_ms=3, peak_memory_bytes=1 << 20)
    for session in sessions:
        recorder.clock = partial(float, session.created_at)
        recorder.session_created(session)
    for number in range(commands):
        session = sessions[-1 if number % BUSY_SHARE == 0 else number % (len(sessions) - 1)]
        at = began + (now - began) * number / commands
        recorder.clock = partial(float, at)
        request = ExecRequest(command=f"python3 script.py --step {number} --out /workspace/results")
        recorder.exec_ended(recorder.exec_started(session, request, {}, OWNER), exited)
        if number % BATCH == 0:
            await history.page(OWNER, EventQuery(limit=1))
    await history.close()


if __name__ == "__main__":
    asyncio.run(
        fill(
            Path(os.environ["SANDLOT_DATA_DIR"]),
            os.environ["SANDLOT_WORKER_ID"],
            sessions_of(int(os.environ[SESSIONS]), time.time()),
            int(os.environ[EVENTS]),
        )
    )
    main()
