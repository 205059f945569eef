"""A live session in memory: its record, its sandbox, and the calls in progress on it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import replace
from typing import Protocol

from sandlot.domain.errors import LinkInterrupted, SandlotError
from sandlot.domain.execution import Exited
from sandlot.domain.recovery import Purpose, SandboxRecord
from sandlot.domain.session import Session, SessionState
from sandlot.domain.session_states import as_unresponsive, ended_error, lost_error, touch, unresponsive_error
from sandlot.providers.base import Sandbox
from sandlot.worker.network.session_network import SessionNetwork
from sandlot.worker.store.database import SessionRecord

# Seconds that a call waits while the sandbox is being adopted or gets its limits.
USABLE_WITHIN_S = 20.0


class PortConnection(Protocol):
    """An open connection to a port of the session. ``through``: the exposure that it needs, if any."""

    port: int
    through: str

    def end(self, error: SandlotError) -> None: ...


class LiveSession:
    """A session that has not ended, with its sandbox.

    ``preparing``: the task that adopts the sandbox after a restart or sets its limits. Calls wait
    for it. ``expiry_check``: set while the worker checks whether an expired session still runs a
    command. New calls wait for it.
    """

    def __init__(self, record: SessionRecord, clock: Callable[[], float]) -> None:
        self.record = record
        self.sandbox: Sandbox | None = None
        self.preparing: asyncio.Task[None] | None = None
        self.expiry_check: asyncio.Future[None] | None = None
        self.network: SessionNetwork | None = None  # once the session has had a sandbox here
        self.watcher: asyncio.Task[None] | None = None
        self.transition_lock = asyncio.Lock()  # one transition at a time
        self.step_lock = asyncio.Lock()  # one beginning of a step at a time; taken before the other
        self.calls = 0
        self.resumable_calls = 0  # calls whose work goes on when the worker stops
        self.event_readers = 0  # clients that read execs' events
        self.port_streams: set[PortConnection] = set()  # open connections to its ports
        self.unsaved = False
        self.given_up = False  # another worker has it
        self.reservation: str | None = None  # the last reservation that a fleet made for it
        self.unresponsive_since: float | None = None
        self.suspected = False  # a call waited for its sandbox in vain
        self.copying = 0  # copies of its files under way, for which its sandbox may be paused
        self.unanswered = 0  # probes in a row that its sandbox did not answer
        self._pending_waits: set[asyncio.Timeout] = set()  # calls that wait for the sandbox
        self._overdue_waits: set[asyncio.Timeout] = set()  # those that one unanswered probe ends
        self._clock = clock

    @property
    def session(self) -> Session:
        return self.record.session

    @session.setter
    def session(self, session: Session) -> None:
        self.record = replace(self.record, session=session)

    @property
    def client_view(self) -> Session:
        """The session as clients see it."""
        return self.session if self.unresponsive_since is None else as_unresponsive(self.session)

    def touch(self) -> None:
        touched = touch(self.session, self._clock())
        if touched is not self.session:
            self.session, self.unsaved = touched, True

    def sandbox_record(self, purpose: Purpose) -> SandboxRecord | None:
        sandbox_id = self.session.sandbox_id
        return None if sandbox_id is None else SandboxRecord(sandbox_id, self.session.environment, purpose)

    async def usable_sandbox(self) -> Sandbox:
        """The session's sandbox. Waits while it is being prepared; raises if it cannot be used."""
        if self.preparing is not None:
            await asyncio.wait([self.preparing], timeout=USABLE_WITHIN_S)
        if self.session.state is SessionState.ENDED:
            raise ended_error(self.session)
        if self.session.state is SessionState.LOST:
            raise lost_error(self.session, may_have_executed=False)
        if self.sandbox is None or self.preparing is not None:
            # Preparing took too long, the worker is stopping, or somebody just had the session hibernate.
            # The sandbox need not be lost.
            raise LinkInterrupted(
                f"The sandbox of session {self.session.id} is still being prepared, or the server is "
                "shutting down. Retry.",
                may_have_executed=False,
                retry_after_s=1.0,
            )
        if self.unresponsive_since is not None:
            raise unresponsive_error(self.session.id, "does not answer", may_have_executed=False)
        return self.sandbox

    @contextlib.contextmanager
    def being_copied(self) -> Iterator[None]:
        """A context in which the sandbox may stand still without being unresponsive."""
        self.copying += 1
        try:
            yield
        finally:
            self.copying -= 1

    @contextlib.asynccontextmanager
    async def awaiting_response(
        self,
        within_s: float | None = None,
        *,
        overdue_after_s: float | None = None,
        may_have_executed: bool = True,
    ) -> AsyncIterator[asyncio.Timeout]:
        """A context for waiting on the sandbox. It raises ``SandboxUnresponsive`` once the sandbox
        is unresponsive or ``within_s`` seconds are over.

        ``overdue_after_s``: after this many seconds a single unanswered probe is enough. The same
        task must enter and leave the context.
        """
        limit = asyncio.timeout(within_s)
        self._pending_waits.add(limit)
        overdue = None
        if overdue_after_s is not None:
            overdue = asyncio.get_running_loop().call_later(overdue_after_s, self._mark_overdue, limit)
        try:
            async with limit:
                yield limit
        except TimeoutError as error:
            if not limit.expired():
                raise
            self.suspected = True
            if self.unresponsive_since is not None or (self.unanswered and limit in self._overdue_waits):
                problem = "no longer answers"
            else:
                problem = f"did not answer within {within_s:g} s"
            raise unresponsive_error(self.session.id, problem, may_have_executed=may_have_executed) from error
        finally:
            self._pending_waits.discard(limit)
            self._overdue_waits.discard(limit)
            if overdue is not None:
                overdue.cancel()

    def mark_unresponsive(self) -> None:
        """Mark the sandbox as unresponsive and fail all calls that wait for it."""
        self.unresponsive_since = self._clock()
        _expire_now(self._pending_waits)

    def record_unanswered(self) -> int:
        """Count an unanswered probe; return how many there are in a row."""
        self.unanswered += 1
        _expire_now(self._overdue_waits)
        return self.unanswered

    def mark_responsive(self) -> None:
        self.unresponsive_since, self.suspected, self.unanswered = None, False, 0

    def _mark_overdue(self, limit: asyncio.Timeout) -> None:
        self._overdue_waits.add(limit)
        if self.unanswered:
            _expire_now((limit,))

    def stop_tasks(self) -> list[asyncio.Task[None]]:
        tasks = [task for task in (self.watcher, self.preparing) if task is not None]
        for task in tasks:
            task.cancel()
        return tasks + self.stop_network()

    def stop_network(self) -> list[asyncio.Task[None]]:
        return [] if self.network is None else self.network.stop()

    def denials_of(self, exec_id: str, exited: Exited) -> Exited:
        """The end of a command, with the connections that were denied meanwhile."""
        return exited if self.network is None else self.network.execs.ended(exec_id, exited)


def _expire_now(limits: Iterable[asyncio.Timeout]) -> None:
    for limit in limits:
        if not limit.expired():
            limit.reschedule(0)
