"""A live session in memory: its record, its sandbox, and whether anything is being done with it just now."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace

from sandlot.domain.errors import LinkInterrupted
from sandlot.domain.recovery import Purpose, SandboxRecord
from sandlot.domain.session import (
    Session,
    SessionState,
    ended_error,
    lost_error,
    touch,
    unresponsive,
    unresponsive_error,
)
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
        self.surviving = 0  # of these: what goes on when the worker stops
        self.readers = 0  # of execs' events
        self.unsaved = False
        self.given_up = False  # another worker has it
        self.reservation: str | None = None  # that was kept for it in a fleet, the last one
        self.unresponsive_since: float | None = None
        self.suspected = False  # a call waited for its sandbox in vain
        self.unanswered = 0  # questions in a row that its sandbox left without an answer
        self._waits: set[asyncio.Timeout] = set()  # of calls that wait for the sandbox
        self._overdue: set[asyncio.Timeout] = set()  # of these: those that one unanswered question ends
        self._clock = clock

    @property
    def session(self) -> Session:
        return self.record.session

    @session.setter
    def session(self, session: Session) -> None:
        self.record = replace(self.record, session=session)

    @property
    def shown(self) -> Session:
        """The session as clients see it."""
        return self.session if self.unresponsive_since is None else unresponsive(self.session)

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
        if self.unresponsive_since is not None:
            raise unresponsive_error(self.session.id, "does not answer", may_have_executed=False)
        return self.sandbox

    @contextlib.asynccontextmanager
    async def answering(
        self,
        within_s: float | None = None,
        *,
        overdue_after_s: float | None = None,
        may_have_executed: bool = True,
    ) -> AsyncIterator[asyncio.Timeout]:
        """What waits for the sandbox ends when that has become unresponsive, or is over its time.

        ``overdue_after_s``: from then on one question that the sandbox leaves unanswered is enough. To be
        entered and left by one task.
        """
        limit = asyncio.timeout(within_s)
        self._waits.add(limit)
        overdue = None
        if overdue_after_s is not None:
            overdue = asyncio.get_running_loop().call_later(overdue_after_s, self._is_overdue, limit)
        try:
            async with limit:
                yield limit
        except TimeoutError as error:
            if not limit.expired():
                raise
            self.suspected = True
            if self.unresponsive_since is not None or (self.unanswered and limit in self._overdue):
                what = "does not answer any more"
            else:
                what = f"did not answer within {within_s:g} s"
            raise unresponsive_error(self.session.id, what, may_have_executed=may_have_executed) from error
        finally:
            self._waits.discard(limit)
            self._overdue.discard(limit)
            if overdue is not None:
                overdue.cancel()

    def fell_silent(self) -> None:
        """Whoever waits for the sandbox is told."""
        self.unresponsive_since = self._clock()
        _end(self._waits)

    def left_unanswered(self) -> int:
        """One more question; returns how many in a row."""
        self.unanswered += 1
        _end(self._overdue)
        return self.unanswered

    def answers(self) -> None:
        self.unresponsive_since, self.suspected, self.unanswered = None, False, 0

    def _is_overdue(self, limit: asyncio.Timeout) -> None:
        self._overdue.add(limit)
        if self.unanswered:
            _end((limit,))

    def stop_tasks(self) -> list[asyncio.Task[None]]:
        tasks = [task for task in (self.watcher, self.preparing) if task is not None]
        for task in tasks:
            task.cancel()
        return tasks


def _end(limits: Iterable[asyncio.Timeout]) -> None:
    for limit in limits:
        if not limit.expired():
            limit.reschedule(0)
