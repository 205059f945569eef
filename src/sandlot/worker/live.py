"""A live session in memory: its record, its sandbox, and whether anything is being done with it just now."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from sandlot.domain.errors import LinkInterrupted, SandboxLost
from sandlot.domain.recovery import Purpose, SandboxRecord
from sandlot.domain.session import LossReport, Session, SessionState, ended_error, touch
from sandlot.providers.base import Sandbox
from sandlot.worker.store import SessionRecord

# Seconds that a call waits for a sandbox that is being adopted or given its limits.
USABLE_WITHIN_S = 20.0

WHAT_IS_LOST = ("running commands", "shells", "files in /workspace and /tmp", "results of earlier execs")
WHAT_IS_KEPT = ("the session's id and thread", "metadata", "environment variables", "limits")


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
            raise self.lost_error(may_have_executed=False)
        if self.sandbox is None or self.preparing is not None:
            # Not done in time, or the worker stops: no reason to call it lost.
            raise LinkInterrupted(
                f"session {self.session.id} is being taken over after a restart; try again",
                may_have_executed=False,
                retry_after_s=1.0,
            )
        return self.sandbox

    def lost_error(self, *, may_have_executed: bool) -> SandboxLost:
        loss = self.session.loss
        return SandboxLost(
            f"the sandbox of session {self.session.id} is lost"
            + (f": {loss.reason}" if loss else "")
            + "; recreate the session to go on with an empty one",
            may_have_executed=may_have_executed,
            details={} if loss is None else {"loss": loss_details(loss)},
        )

    def stop_tasks(self) -> list[asyncio.Task[None]]:
        tasks = [task for task in (self.watcher, self.preparing) if task is not None]
        for task in tasks:
            task.cancel()
        return tasks


def loss_report(session: Session, reason: str, now: float) -> LossReport:
    return LossReport(session.generation, now, reason, WHAT_IS_LOST, WHAT_IS_KEPT)


def loss_details(loss: LossReport) -> dict[str, object]:
    return {
        "generation": loss.generation,
        "at": loss.at,
        "reason": loss.reason,
        "lost": list(loss.lost),
        "kept": list(loss.kept),
    }
