"""``Recordings``: records the sessions that asked for it, and reads what was recorded.

No command waits for a recording. What a command writes is kept in memory for a moment, then masked and
written on a thread. The memory is bounded: if the disk cannot keep up, a recording stops and says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Final

import structlog

from sandlot.domain.errors import Unsupported
from sandlot.domain.recordings.reports import RecordingFigures
from sandlot.domain.session import Session
from sandlot.worker.background_writer import BackgroundWriter
from sandlot.worker.recordings.files import Name, RecordingFolder, Step
from sandlot.worker.recordings.options import RecordingOptions
from sandlot.worker.recordings.readers import Readers
from sandlot.worker.recordings.session_recording import SessionRecording
from sandlot.worker.sessions.live_session import LiveSession

log = structlog.get_logger("sandlot.recordings")

FOLDER: Final = "recordings"
# Waiting in memory: from when it is written at once, and from when a recording stops.
HURRY_BYTES: Final = 1024 * 1024
MAX_WAITING_BYTES: Final = 32 * 1024 * 1024
# Seconds between two looks for recordings that are too old.
REMOVE_EVERY_S: Final = 60.0
# Seconds that a stop waits for a disk that hangs.
CLOSE_WITHIN_S: Final = 2.0

TOO_SLOW: Final = "recording stopped: the server could not write it fast enough"
REMOVED: Final = "recording stopped: it was removed to make room for others"


class Recordings:
    """Open it before anything is recorded. ``readers`` reads commands that nobody else reads."""

    def __init__(self, folder: Path, options: RecordingOptions) -> None:
        self._options = options
        self._folder = RecordingFolder(folder / FOLDER)
        self._live: dict[Name, SessionRecording] = {}
        self._changed: dict[SessionRecording, None] = {}  # in the order of their changes
        self._waiting_bytes = 0
        self._remove_at = 0.0
        self._writer = BackgroundWriter(self._write, idle_s=REMOVE_EVERY_S)
        self.readers = Readers()

    async def open(self) -> None:
        if self._options.enabled:
            await asyncio.to_thread(self._folder.scan)
            self._writer.start("recordings writer")

    async def close(self) -> None:
        await self.readers.close()
        await self._writer.stop(within_s=CLOSE_WITHIN_S)

    @property
    def figures(self) -> RecordingFigures | None:
        if not self._options.enabled:
            return None
        return RecordingFigures(self._folder.count, self._folder.used_bytes)

    # --- sessions -----------------------------------------------------------------------------

    def check_asked(self, record: bool) -> None:
        """Raise ``Unsupported`` if a session asks to be recorded and none is."""
        if record and not self._options.enabled:
            raise Unsupported(
                "This server records no sessions. Leave out record, or the operator can set "
                "SANDLOT_RECORDINGS=true."
            )

    def of(self, live_session: LiveSession) -> SessionRecording | None:
        """The recording of a session that has one."""
        session = live_session.session
        if not session.record or not self._writer.started:
            return None
        name = Name(session.tenant, session.id)
        recording = self._live.get(name)
        if recording is None:
            file = self._folder.file(name, self._options.max_session_bytes)
            recording = SessionRecording(name, live_session.record.env, file, self._options, self._on_change)
            self._live[name] = recording
        return recording

    def claimed(self, live_session: LiveSession) -> None:
        """The session has a sandbox, its first or a new one."""
        recording = self.of(live_session)
        if recording is not None:
            recording.note(f"sandbox {live_session.session.generation}")

    def left(self, session: Session, reason: str) -> None:
        """The session has no sandbox any more. If it gets a new one, its recording continues."""
        recording = self._live.pop(Name(session.tenant, session.id), None)
        if recording is not None:
            recording.all_unseen(reason)
            recording.note(reason)

    # --- reading ------------------------------------------------------------------------------

    async def read(self, tenant: str, session_id: str) -> AsyncGenerator[bytes, None]:
        """A recording, with everything that was recorded before the call."""
        await self._writer.flush()
        pieces = self._folder.read(Name(tenant, session_id))
        try:
            while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
                yield piece
        finally:
            with contextlib.suppress(ValueError):  # a cancelled caller leaves it at work
                pieces.close()

    # --- writing ------------------------------------------------------------------------------

    def _on_change(self, recording: SessionRecording, size: int) -> None:
        self._waiting_bytes += size
        self._changed[recording] = None
        self._writer.wake(hurry=self._waiting_bytes > HURRY_BYTES)
        if self._waiting_bytes > MAX_WAITING_BYTES:
            recording.stop(TOO_SLOW)

    async def _write(self) -> float:
        try:
            await self._write_changed()
        except Exception:
            log.exception("cannot write recordings")
        return 0.0

    async def _write_changed(self) -> None:
        batch = [(recording, recording.take()) for recording in self._changed]
        self._changed.clear()
        # Counted until it is written: it is in memory until then.
        counted = self._waiting_bytes
        try:
            removed = await asyncio.to_thread(self._write_on_thread, batch, set(self._live))
        finally:
            self._waiting_bytes -= counted
        for recording, _ in batch:
            recording.stopped = recording.stopped or recording.file.stopped
        for name in removed:
            if (live := self._live.get(name)) is not None:
                live.stopped = REMOVED
                live.file.removed(REMOVED)
                log.warning("removed the recording of a live session", session=name.session_id)

    def _write_on_thread(
        self, batch: list[tuple[SessionRecording, list[Step]]], live: set[Name]
    ) -> list[Name]:
        for recording, steps in batch:
            file = recording.file
            try:
                file.add(steps)
            except OSError as error:
                file.stopped = f"recording stopped: {error.strerror or error}"
                log.warning("a recording stopped", session=recording.name.session_id, error=str(error))
            if file.size:
                self._folder.written(recording.name, file.size)
        if time.monotonic() >= self._remove_at:
            self._remove_at = time.monotonic() + REMOVE_EVERY_S
            self._folder.remove_old(time.time() - self._options.max_age_s, live)
        return self._folder.make_room(self._options.max_bytes, live)
