"""A live session in memory: its record, its sandbox, and whether anything is being done with it just now."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from sandlot.domain.errors import LinkInterrupted
from sandlot.domain.recovery import Purpose, SandboxRecord
from sandlot.domain.session import Session, SessionState, ended_error, lost_error, touch
from sandlot.providers.base import Sandbox
from sandlot.worker.store import SessionRecord

# Seconds that a call waits for a sandbox that is being adopted or given its limits.
USABLE_WITHIN_S = 20.0


class Live:
    """``preparing``: adoption after a restart, or limits on their way; calls wait for it.

    ``deciding``: its time is over and it is being looked at whether something still runs; new calls wait.
    """

    def __init__(self, record: SessionRecord, clock: Callable[[], float]) -> None:
        self.record = record
        self.sandbox: Sandbox | None = None
        self.preparing: asyncio.Task[None] | None = None
        self.deciding: asyncio.Future[None] | None = None
        self.watcher: asyncio.Task[None] | None = None
        self.changing = asyncio.Lock()  # one transition at a time
        self.calls = 0
        self.readers = 0  # of execs' events
        self.unsaved = False
        self.given_up = False  # another worker has it
        self.reservation: str | None = None  # that was kept for it in a fleet, the last one
        self._clock = clock

    @property
    def session(self) -> Session:
        return self.record.session

    @session.setter
    def session(self, session: Session) -> None:
        self.record = replace(self.record, session=session)

    def touch(self) -> None:
        touched = touch(self.session, self._clock())
        if touched is not self.session:
            self.session, self.unsaved = touched, True

    def sandbox_record(self, purpose: Purpose) -> SandboxRecord | None:
        sandbox_id = self.session.sandbox_id
        return None if sandbox_id is None else SandboxRecord(sandbox_id, self.session.environment, purpose)

    async def usable(self) -> Sandbox:
        """Its sandbox, waited for while it is being prepared."""
        if self.preparing is not None:
            await asyncio.wait([self.preparing], timeout=USABLE_WITHIN_S)
        if self.session.state is SessionState.ENDED:
            raise ended_error(self.session)
        if self.session.state is SessionState.LOST:
            raise lost_error(self.session, may_have_executed=False)
        if self.sandbox is None or self.preparing is not None:
            # Not done in time, or the worker stops: no reason to call it lost.
            raise LinkInterrupted(
                f"the sandbox of session {self.session.id} is still being prepared, or the server is "
                "stopping; try again",
                may_have_executed=False,
                retry_after_s=1.0,
            )
        return self.sandbox

    def stop_tasks(self) -> list[asyncio.Task[None]]:
        tasks = [task for task in (self.watcher, self.preparing) if task is not None]
        for task in tasks:
            task.cancel()
        return tasks
