"""The fake's history and recordings: the same events and asciicasts as a worker's, in memory."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Final

from sandlot.domain.callers.limits import Allowance, holders_of, too_many_execs
from sandlot.domain.callers.principal import Principal
from sandlot.domain.execution import Channel, ExecRequest
from sandlot.domain.files import ArchiveSummary, FileEntry
from sandlot.domain.history.events import Event, EventKind
from sandlot.domain.history.masking import secrets_in
from sandlot.domain.history.positions import parse_event_id, worker_tag
from sandlot.domain.history.query import EventPage, EventQuery
from sandlot.domain.history.recorder import Recorder, Subject, called_by
from sandlot.domain.recordings.cast import Cast, shown_command
from sandlot.domain.recordings.reports import no_recording_error
from sandlot.domain.session import Session
from sandlot.testing.fake.execs import FakeExec
from sandlot.testing.fake.files import FakeFiles
from sandlot.testing.fake.records import Record
from sandlot.testing.fake.tree import Tree

MAX_EVENTS: Final = 100_000
LOOK_EVERY_S: Final = 0.02


class FakeHistory:
    def __init__(self, worker_id: str, clock: Callable[[], float]) -> None:
        self._events: deque[Event] = deque(maxlen=MAX_EVENTS)
        self.recorder = Recorder(self._events.append, worker_tag(worker_id), clock=clock)
        self._started: dict[tuple[str, str], Subject] = {}
        self._casts: dict[tuple[str, str], tuple[Cast, bytearray]] = {}  # by tenant and session
        self._clock = clock

    def opened(self, session: Session, caller: Principal, *, created: bool) -> None:
        with called_by(caller):
            if created:
                self.recorder.session_created(session)
            self.recorder.session_claimed(session)
        if created and session.record:
            cast = Cast(int(self._clock()))
            lines = bytearray(cast.header(f"Sandlot session {session.id}"))
            self._casts[session.tenant, session.id] = cast, lines
        self._add(session, lambda cast, now: cast.note(now, f"sandbox {session.generation}"))

    def check_slots(self, allowances: Sequence[Allowance]) -> None:
        """Raise ``Busy`` if a holder runs as many commands as it may."""
        for allowance in allowances:
            running = [holders_of(one.tenant, one.key_id) for one in self._started.values()]
            most = allowance.limits.execs
            if most is not None and sum(allowance.holder in holders for holders in running) >= most:
                raise too_many_execs(allowance)

    def exec_started(self, record: Record, request: ExecRequest, caller: Principal) -> None:
        started = self.recorder.exec_started(record.session, request, record.request.env, caller)
        self._started[record.session.id, request.exec_id] = started
        secrets = secrets_in(record.request.env.values(), request.env.values())
        shown = shown_command(request, secrets)
        self._add(record.session, lambda cast, now: cast.started(now, request, shown, secrets))

    def output(self, session: Session, exec_id: str, channel: Channel, data: bytes) -> None:
        self._add(session, lambda cast, now: cast.output(now, exec_id, channel, data))

    def exec_ended(self, session: Session, ended: FakeExec) -> None:
        started = self._started.pop((session.id, ended.request.exec_id), None)
        if started is not None and (exited := ended.exited) is not None:
            self.recorder.exec_ended(started, exited)
            self._add(session, lambda cast, now: cast.ended(now, ended.request.exec_id, exited))

    def lost(self, session: Session) -> None:
        self.recorder.session_lost(session)
        self._all_unseen(session, "the sandbox was lost")

    def replaced(self, session: Session) -> None:
        """The session's sandbox is about to be replaced on request."""
        self._all_unseen(session, "the sandbox was replaced")

    def hibernated(self, session: Session, caller: Principal | None) -> None:
        """``caller``: who asked for it; None if its time was over."""
        self._all_unseen(session, "the session hibernated")
        with nullcontext() if caller is None else called_by(caller):
            self.recorder.session_hibernated(session)

    def ended(self, session: Session, caller: Principal) -> None:
        self._all_unseen(session, "the session ended")
        with called_by(caller):
            self.recorder.session_ended(session)

    def _all_unseen(self, session: Session, reason: str) -> None:
        for name in [name for name in self._started if name[0] == session.id]:
            self.recorder.exec_unseen(self._started.pop(name), reason)
        self._add(session, lambda cast, now: cast.note(now, reason))

    def recording(self, caller: Principal, session_id: str) -> bytes:
        known = self._casts.get((caller.tenant, session_id))
        if known is None:
            raise no_recording_error(session_id, recorded=False)
        return bytes(known[1])

    def _add(self, session: Session, step: Callable[[Cast, float], bytes]) -> None:
        known = self._casts.get((session.tenant, session.id))
        if known is not None:
            cast, lines = known
            lines += step(cast, self._clock())

    async def page(self, principal: Principal, query: EventQuery) -> EventPage:
        tenant = query.tenant_for(principal)
        clock = asyncio.get_running_loop().time
        deadline = clock() + query.wait_s
        page = self._page(tenant, query)
        while not page.events and clock() < deadline:
            await asyncio.sleep(LOOK_EVERY_S)
            page = self._page(tenant, query)
        return page

    def _page(self, tenant: str, query: EventQuery) -> EventPage:
        after_us, before_us = query.times_us(self.recorder.tag)
        found = [
            event
            for event in self._events
            if event.tenant == tenant
            and query.matches(event)
            and parse_event_id(event.id)[0] > after_us
            and (before_us is None or parse_event_id(event.id)[0] < before_us)
        ]
        events = tuple(replace(event, kind=str(event.kind)) for event in found[: query.limit])
        position = query.position.after(event.id for event in events)
        return EventPage(events, str(position), more=len(found) > len(events))


class RecordedFiles(FakeFiles):
    """Records what a caller changes."""

    def __init__(
        self, tree: Callable[[], Tree], history: FakeHistory, record: Callable[[], Record], caller: Principal
    ) -> None:
        super().__init__(tree)
        self._history = history
        self._record = record
        self._caller = caller

    def _on_change(
        self, kind: EventKind, paths: Mapping[str, str], figures: Mapping[str, int] | None
    ) -> None:
        record = self._record()
        self._history.recorder.file_changed(
            kind, record.session, record.request.env, self._caller, paths, figures
        )

    async def write(
        self,
        path: str,
        content: bytes | AsyncIterable[bytes],
        *,
        mode: int | None = None,
        parents: bool = True,
        exclusive: bool = False,
    ) -> FileEntry:
        entry = await super().write(path, content, mode=mode, parents=parents, exclusive=exclusive)
        self._on_change(EventKind.FILE_WRITTEN, {"path": path}, {"bytes": entry.size})
        return entry

    async def write_archive(
        self,
        path: str,
        tar: AsyncIterable[bytes],
        *,
        max_bytes: int | None = None,
        max_files: int | None = None,
    ) -> ArchiveSummary:
        summary = await super().write_archive(path, tar, max_bytes=max_bytes, max_files=max_files)
        figures = {"bytes": summary.bytes, "files": summary.files}
        self._on_change(EventKind.FILE_WRITTEN, {"path": path}, figures)
        return summary

    async def move(self, source: str, destination: str, *, overwrite: bool = False) -> FileEntry:
        entry = await super().move(source, destination, overwrite=overwrite)
        self._on_change(EventKind.FILE_MOVED, {"path": source, "destination": destination}, None)
        return entry

    async def remove(self, path: str, *, recursive: bool = False, missing_ok: bool = False) -> int:
        removed = await super().remove(path, recursive=recursive, missing_ok=missing_ok)
        if removed:
            self._on_change(EventKind.FILE_REMOVED, {"path": path}, {"files": removed})
        return removed
