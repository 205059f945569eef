"""The life of sessions after ``opening`` has created them: use, change, loss, end.

``domain.session`` has the rules; this module performs them. It records each decision before it
acts. So a worker that dies in between finds the unfinished work at its next start.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import structlog

from sandlot.domain.errors import SandboxLost, SandlotError, Unavailable
from sandlot.domain.recovery import Purpose, SandboxRecord
from sandlot.domain.session import EndReason, OnIdle, Session, SessionChange, SessionState, Timeout
from sandlot.domain.session_states import (
    end,
    ended_error,
    expiry_reason,
    hibernate,
    hibernation_report,
    lifetime_over,
    lose,
    lost_error,
    resolve_timeout,
)
from sandlot.domain.workspaces.workspace import Workspace
from sandlot.providers.base import Sandbox
from sandlot.worker.contexts.program import BRIDGE_EXEC_ID
from sandlot.worker.failpoints import Step, reached
from sandlot.worker.history.history import History
from sandlot.worker.options import WorkerOptions
from sandlot.worker.registrar import Registrar
from sandlot.worker.sessions.elsewhere import check_hibernates, loss_of
from sandlot.worker.sessions.live_session import LiveSession
from sandlot.worker.sessions.table import SessionTable
from sandlot.worker.store.database import Store
from sandlot.worker.store.transitions import Transitions
from sandlot.worker.upkeep.removals import Removals

log = structlog.get_logger("sandlot.sessions")

# Seconds that closing waits for removals. Unfinished ones are on record for the next start.
CLOSE_WITHIN_S = 30.0
# Seconds that the agent of an expired session has to report its running execs.
ASK_WITHIN_S = 5.0


class SessionLifecycle:
    def __init__(
        self,
        *,
        store: Store,
        removals: Removals,
        transitions: Transitions,
        options: WorkerOptions,
        registrar: Registrar,
        history: History,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.table = SessionTable(clock)
        # Gives a hibernated session a sandbox. ``Opening`` sets it, which stands above this class.
        self.wake: Callable[[LiveSession], Awaitable[None]]
        # Keeps the files that a session declared. ``Artifacts`` sets it, for the same reason.
        self.keep_declared: Callable[[LiveSession], Awaitable[None]]
        self.history = history
        self._store = store
        self._removals = removals
        self._transitions = transitions
        self._options = options
        self._registrar = registrar
        self._clock = clock

    @property
    def calls(self) -> int:
        """How many calls are in progress."""
        return sum(live_session.calls for live_session in self.table)

    def in_use(self, *, commands: bool) -> bool:
        """Whether any caller waits for an answer.

        ``commands``: also count callers that wait for a command or read its events.
        """
        if commands:
            return any(live_session.calls or live_session.event_readers for live_session in self.table)
        return any(live_session.calls > live_session.resumable_calls for live_session in self.table)

    async def report(self, live_session: LiveSession) -> None:
        await self._registrar.changed(live_session.session, live_session.record.idempotency_key)

    @contextlib.asynccontextmanager
    async def _reported_if_cancelled(self, live_session: LiveSession) -> AsyncIterator[None]:
        """The fleet must hear of a change that is already made, even if its caller is cancelled."""
        try:
            yield
        except asyncio.CancelledError:
            await self.report(live_session)
            raise

    def timeout(self, asked: Timeout | None, configured: float | None) -> float | None:
        return resolve_timeout(asked, configured, never_allowed=self._options.allow_never)

    # --- using --------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def use(
        self, tenant: str, session_id: str, *, starts_work: bool = True, resumable: bool = False
    ) -> AsyncIterator[tuple[LiveSession, Sandbox]]:
        """A call on the session's sandbox. The session does not expire while the call lasts.

        ``starts_work``: the call starts something new. A session whose lifetime is over refuses
        such calls but still allows reads. ``resumable``: the work goes on when the worker stops,
        and the caller can ask for its result later.
        """
        live_session = await self._awake(tenant, session_id)
        if starts_work and expiry_reason(live_session.session, self._clock()) is EndReason.LIFETIME:
            raise lifetime_over(live_session.session, self._clock())
        live_session.touch()
        live_session.calls += 1
        live_session.resumable_calls += resumable
        try:
            sandbox = await live_session.usable_sandbox()
            try:
                yield live_session, sandbox
            except SandboxLost as error:
                raise await self.explain(live_session, sandbox, error) from error
        finally:
            live_session.calls -= 1
            live_session.resumable_calls -= resumable
            live_session.touch()

    async def _awake(self, tenant: str, session_id: str) -> LiveSession:
        """The session, once nobody checks whether it has expired, and with a sandbox if it hibernated."""
        while True:
            live_session = self.table.get(tenant, session_id)
            if live_session.expiry_check is not None:
                await asyncio.shield(live_session.expiry_check)
            elif live_session.session.state is SessionState.HIBERNATED:
                await self.wake(live_session)
            elif not self._hibernates_now(live_session):
                return live_session
            else:
                await self.expire(live_session)
                if self._hibernates_now(live_session):
                    return live_session  # a command still runs in it

    def _hibernates_now(self, live_session: LiveSession) -> bool:
        """Whether the session is past its lifetime, and hibernates and wakes before it does more."""
        session = live_session.session
        return (
            session.state is SessionState.ACTIVE
            and session.on_idle is OnIdle.HIBERNATE
            and expiry_reason(session, self._clock()) is EndReason.LIFETIME
        )

    async def explain(self, live_session: LiveSession, sandbox: Sandbox, error: SandboxLost) -> SandlotError:
        """The error for a call on a lost sandbox: the session ended, or it lost its sandbox."""
        if live_session.session.state is not SessionState.ENDED:
            await self.record_loss(live_session, sandbox, error.message)
        if live_session.session.state is SessionState.ENDED:
            gone = ended_error(live_session.session)
            gone.may_have_executed = error.may_have_executed
            return gone
        return lost_error(live_session.session, may_have_executed=error.may_have_executed)

    async def change(self, live_session: LiveSession, change: SessionChange) -> Session:
        def changed(session: Session) -> Session:
            return replace(
                session,
                idle_timeout_s=self.timeout(change.idle_timeout_s, session.idle_timeout_s),
                lifetime_s=self.timeout(change.lifetime_s, session.lifetime_s),
                metadata=session.metadata if change.metadata is None else dict(change.metadata),
            )

        return await self.rewrite(live_session, changed)

    async def rewrite(self, live_session: LiveSession, changed: Callable[[Session], Session]) -> Session:
        """Change what is on record of a session. ``changed`` is pure, and may be called twice."""
        async with live_session.transition_lock:
            if live_session.session.state is SessionState.ENDED:
                raise ended_error(live_session.session)
            self.check_not_given_up(live_session)
            await self._store.save([replace(live_session.record, session=changed(live_session.session))])
            self._transitions.drop_pending(live_session.session.id)
            # Applied again to the current session: a call may have touched it meanwhile.
            live_session.session = changed(live_session.session)
        live_session.touch()
        await self.report(live_session)
        return live_session.session

    # --- ending -------------------------------------------------------------------------------

    def watch(self, live_session: LiveSession) -> None:
        """Watch for the end of the session's sandbox, whatever causes it."""
        sandbox = live_session.sandbox
        assert sandbox is not None

        async def watching() -> None:
            await self.record_loss(live_session, sandbox, await sandbox.wait_lost())

        live_session.watcher = asyncio.create_task(
            watching(), name=f"watch the sandbox of {live_session.session.id}"
        )

    async def record_loss(self, live_session: LiveSession, sandbox: Sandbox | None, reason: str) -> None:
        """Record that the session lost its sandbox; does nothing if it has another one by now.

        A lost sandbox is reported, never silently replaced.
        """
        async with live_session.transition_lock:
            if live_session.sandbox is not sandbox or live_session.session.state is not SessionState.ACTIVE:
                return
            removing = live_session.sandbox_record(Purpose.REMOVING)
            report = loss_of(live_session.session, reason, self._clock())
            live_session.sandbox, live_session.session = None, lose(live_session.session, report)
            live_session.mark_responsive()
            live_session.stop_network()
            self.history.lost(live_session.session)
            log.warning(
                "sandbox lost", session=live_session.session.id, generation=report.generation, reason=reason
            )
            # Started before the first await, so that a cancelled caller leaves no sandbox behind.
            self._removals.release(live_session.session.id, removing)
            async with self._reported_if_cancelled(live_session):
                await self._transitions.save(live_session.record, removing)
            reached(Step.LOSS_RECORDED)
        await self.report(live_session)

    async def end(self, live_session: LiveSession, reason: EndReason) -> None:
        """End the session. When this returns, none of its processes is left."""
        await self.keep_declared(live_session)
        await self._retire(live_session, reason)
        await self.finish_removal(live_session.session.id)

    async def _retire(self, live_session: LiveSession, reason: EndReason) -> None:
        """Mark the session as ended and start to remove its sandbox."""
        async with live_session.transition_lock:
            if live_session.session.state is SessionState.ENDED:
                return
            self.check_not_given_up(live_session)
            if reason is not EndReason.DELETED and expiry_reason(live_session.session, self._clock()) is None:
                return  # extended while this waited
            removing = live_session.sandbox_record(Purpose.REMOVING)
            workspace = live_session.session.workspace
            # All of this comes before the first await, so that a cancelled caller leaves nothing
            # half done.
            live_session.sandbox = None
            live_session.session = end(live_session.session, reason, self._clock())
            self.table.add_ended(replace(live_session.record, env={}))
            self.history.ended(live_session.session)
            for stream in live_session.port_streams:
                stream.end(ended_error(live_session.session))
            tasks = live_session.stop_tasks()
            self.release(live_session.session.id, removing, workspace)
            async with self._reported_if_cancelled(live_session):
                await self._transitions.save(live_session.record, removing)
                reached(Step.END_RECORDED)
                log.info("session ended", session=live_session.session.id, reason=reason.value)
                if tasks:
                    await asyncio.wait(tasks)
        await self.report(live_session)

    async def hibernate(self, live_session: LiveSession, reason: EndReason | None = None) -> None:
        """Start to remove the session's sandbox, and keep its files.

        ``reason``: None if somebody asked for it.
        """
        if reason is None:
            await self.keep_declared(live_session)
        async with live_session.transition_lock:
            session = live_session.session
            if session.state is SessionState.ENDED:
                raise ended_error(session)
            self.check_not_given_up(live_session)
            if reason is not None and expiry_reason(session, self._clock()) is None:
                return  # extended while this waited
            if session.state is SessionState.LOST:
                raise lost_error(session, may_have_executed=False)
            check_hibernates(session)
            if session.state is not SessionState.HIBERNATED:
                await self._hibernate(live_session, reason)
        await self.report(live_session)

    async def _hibernate(self, live_session: LiveSession, reason: EndReason | None) -> None:
        removing = live_session.sandbox_record(Purpose.REMOVING)
        report = hibernation_report(live_session.session, reason, self._clock())
        # All of this comes before the first await, so that a cancelled caller leaves nothing half done.
        live_session.sandbox = None
        live_session.session = hibernate(live_session.session, report)
        live_session.mark_responsive()
        self.history.hibernated(live_session.session)
        for stream in live_session.port_streams:
            stream.end(lost_error(live_session.session, may_have_executed=True))
        tasks = live_session.stop_tasks()
        live_session.watcher = live_session.preparing = None
        self._removals.release(live_session.session.id, removing)
        async with self._reported_if_cancelled(live_session):
            await self._transitions.save(live_session.record, removing)
            reached(Step.HIBERNATION_RECORDED)
            log.info("session hibernated", session=live_session.session.id, reason=report.reason)
            if tasks:
                await asyncio.wait(tasks)

    def check_not_given_up(self, live_session: LiveSession) -> None:
        """Raise ``Unavailable`` if another worker took over the session while this call waited for
        the lock.
        """
        if live_session.given_up:
            raise Unavailable(
                f"Session {live_session.session.id} has moved to another worker. Retry.",
                retry_after_s=0.5,
                details={"reason": "not_here"},
            )

    def release(
        self, session_id: str, sandbox: SandboxRecord | None, workspace: Workspace | None = None
    ) -> None:
        """Start to remove a sandbox that the session no longer has, and the files that it no longer needs."""
        self._removals.release(session_id, sandbox, "" if workspace is None else workspace.id)

    async def finish_removal(self, session_id: str) -> None:
        await self._removals.finish(session_id)

    def is_removing(self, session_id: str) -> bool:
        return self._removals.has_pending(session_id)

    async def expire(self, live_session: LiveSession) -> None:
        """End a session that has expired, unless a command still runs in it. The worker accepted
        that command, so it lets it finish.
        """
        reason = expiry_reason(live_session.session, self._clock())
        if reason is None or live_session.expiry_check is not None:
            return
        if live_session.calls and not self._is_overdue(live_session):
            return
        live_session.expiry_check = asyncio.get_running_loop().create_future()
        try:
            if not await self._has_running_execs(live_session):
                await self._stop_using(live_session, reason)
            elif reason is EndReason.IDLE:
                live_session.touch()
        finally:
            live_session.expiry_check.set_result(None)
            live_session.expiry_check = None

    async def _stop_using(self, live_session: LiveSession, reason: EndReason) -> None:
        await self.keep_declared(live_session)
        hibernates = (
            live_session.session.on_idle is OnIdle.HIBERNATE
            and live_session.session.state is SessionState.ACTIVE
            and self.table.hibernated < self._options.workspaces.max_hibernated
        )
        if hibernates:
            await self.hibernate(live_session, reason)
        else:
            await self._retire(live_session, reason)

    def _is_overdue(self, live_session: LiveSession) -> bool:
        """Whether no command that the session accepted before it expired can still run."""
        now = self._clock()
        return now - (live_session.session.expires_at or now) > self._options.max_exec_timeout_s

    async def _has_running_execs(self, live_session: LiveSession) -> bool:
        if self._is_overdue(live_session):
            return False
        if live_session.sandbox is None:
            return live_session.preparing is not None
        try:
            async with asyncio.timeout(ASK_WITHIN_S):
                execs = await live_session.sandbox.list_execs()
                return any(known.running for known in execs if known.exec_id != BRIDGE_EXEC_ID)
        except (SandlotError, TimeoutError):
            return True

    def remove_in_background(self, sandbox_id: str) -> None:
        self._removals.start(sandbox_id)

    async def close(self) -> None:
        """Stop all tasks and save activity. The sessions' sandboxes stay."""
        tasks = [task for live_session in self.table for task in live_session.stop_tasks()]
        tasks += self._removals.under_way
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_WITHIN_S)
        with contextlib.suppress(SandlotError):
            await self.save_activity()

    async def save_activity(self) -> None:
        """Write when sessions were last active, in bulk, together with transitions that failed to
        be written before. The reaper calls this regularly.
        """
        await self._transitions.save_pending()
        unsaved = [live_session for live_session in self.table if live_session.unsaved]
        if unsaved:
            await self._store.save_activity([live_session.session for live_session in unsaved])
            for live_session in unsaved:
                live_session.unsaved = False
