"""What becomes of sessions once they are there: used, changed, lost, ended. ``opening`` makes them.

The rules are in ``domain.session``. This performs them: what is decided is written down first and done then,
so that a worker that dies in between finds on its next start what remains to be done.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import structlog

from sandlot.domain.errors import SandboxLost, SandlotError, StorageProblem, Unavailable
from sandlot.domain.recovery import Purpose
from sandlot.domain.session import (
    EndReason,
    Session,
    SessionChange,
    SessionState,
    Timeout,
    due,
    end,
    ended_error,
    lose,
    loss_report,
    lost_error,
    resolve_timeout,
)
from sandlot.providers.base import Sandbox
from sandlot.worker.failpoints import Step, reached
from sandlot.worker.live import Live
from sandlot.worker.options import WorkerOptions
from sandlot.worker.registrar import Registrar
from sandlot.worker.removals import Removals
from sandlot.worker.store import Store
from sandlot.worker.table import SessionTable
from sandlot.worker.transitions import Transitions

log = structlog.get_logger("sandlot.sessions")

# Seconds that closing waits for removals; what is not done by then is on record.
CLOSE_WITHIN_S = 30.0
# Seconds in which an agent says what runs in it when a session's time is over.
ASK_WITHIN_S = 5.0


class Sessions:
    def __init__(
        self,
        *,
        store: Store,
        removals: Removals,
        transitions: Transitions,
        options: WorkerOptions,
        registrar: Registrar,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.table = SessionTable(clock)
        self._store = store
        self._removals = removals
        self._transitions = transitions
        self._options = options
        self._registrar = registrar
        self._clock = clock

    @property
    def calls(self) -> int:
        """How many are under way."""
        return sum(live.calls for live in self.table)

    def in_use(self, *, commands: bool) -> bool:
        """Whether anybody waits for an answer; ``commands``: also for a command, or reads its events."""
        if commands:
            return any(live.calls or live.readers for live in self.table)
        return any(live.calls > live.surviving for live in self.table)

    async def tell(self, live: Live) -> None:
        await self._registrar.changed(live.session, live.record.idempotency_key)

    def timeout(self, asked: Timeout | None, configured: float | None) -> float | None:
        return resolve_timeout(asked, configured, never_allowed=self._options.allow_never)

    # --- using --------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def use(
        self, tenant: str, session_id: str, *, begins: bool = True, survives: bool = False
    ) -> AsyncIterator[tuple[Live, Sandbox]]:
        """A call on the session's sandbox. While it lasts, the session does not end by its age.

        ``begins``: something new begins, which a session whose lifetime is over refuses; looking is let in.
        ``survives``: what it waits for goes on when the worker stops, and can be asked for again.
        """
        live = self.table.get(tenant, session_id)
        while live.deciding is not None:
            await asyncio.shield(live.deciding)
            live = self.table.get(tenant, session_id)
        if begins and due(live.session, self._clock()) is EndReason.LIFETIME:
            over = ended_error(end(live.session, EndReason.LIFETIME, self._clock()))
            over.retryable, over.retry_after_s = live.session.thread is not None, 1.0
            raise over
        live.touch()
        live.calls += 1
        live.surviving += survives
        try:
            sandbox = await live.usable()
            try:
                yield live, sandbox
            except SandboxLost as error:
                raise await self.explain(live, sandbox, error) from error
        finally:
            live.calls -= 1
            live.surviving -= survives
            live.touch()

    async def explain(self, live: Live, sandbox: Sandbox, error: SandboxLost) -> SandlotError:
        """What a lost sandbox means to the caller: the session ended, or it lost its sandbox."""
        if live.session.state is not SessionState.ENDED:
            await self.lost(live, sandbox, error.message)
        if live.session.state is SessionState.ENDED:
            gone = ended_error(live.session)
            gone.may_have_executed = error.may_have_executed
            return gone
        return lost_error(live.session, may_have_executed=error.may_have_executed)

    async def change(self, live: Live, change: SessionChange) -> Session:
        async with live.changing:
            if live.session.state is SessionState.ENDED:
                raise ended_error(live.session)
            self.check_here(live)
            idle_timeout_s = self.timeout(change.idle_timeout_s, live.session.idle_timeout_s)
            lifetime_s = self.timeout(change.lifetime_s, live.session.lifetime_s)
            metadata = live.session.metadata if change.metadata is None else dict(change.metadata)

            def changed(session: Session) -> Session:
                return replace(
                    session, idle_timeout_s=idle_timeout_s, lifetime_s=lifetime_s, metadata=metadata
                )

            await self._store.save([replace(live.record, session=changed(live.session))])
            self._transitions.superseded(live.session.id)
            live.session = changed(live.session)  # a call may have touched it meanwhile
        live.touch()
        await self.tell(live)
        return live.session

    # --- ending -------------------------------------------------------------------------------

    def watch(self, live: Live) -> None:
        """Notices the sandbox's end, whoever ends it."""
        sandbox = live.sandbox
        assert sandbox is not None

        async def watching() -> None:
            await self.lost(live, sandbox, await sandbox.wait_lost())

        live.watcher = asyncio.create_task(watching(), name=f"watch the sandbox of {live.session.id}")

    async def lost(self, live: Live, sandbox: Sandbox | None, reason: str) -> None:
        """Reported, never silently replaced. About a sandbox that is no longer the session's: nothing."""
        async with live.changing:
            if live.sandbox is not sandbox or live.session.state is not SessionState.ACTIVE:
                return
            removing = live.sandbox_record(Purpose.REMOVING)
            report = loss_report(live.session, reason, self._clock())
            live.sandbox, live.session = None, lose(live.session, report)
            live.answers()
            log.warning("sandbox lost", session=live.session.id, generation=report.generation, reason=reason)
            # Begun before the first await: whoever is cut short here leaves nothing behind.
            self._removals.let_go(live.session.id, removing)
            await self._transitions.save(live.record, removing)
            reached(Step.LOSS_RECORDED)
        await self.tell(live)

    async def end(self, live: Live, reason: EndReason) -> None:
        """When it returns, no process of the session is left."""
        await self._retire(live, reason)
        await self.finish_removal(live.session.id)

    async def _retire(self, live: Live, reason: EndReason) -> None:
        """Ended from here on; its sandbox is on its way out."""
        async with live.changing:
            if live.session.state is SessionState.ENDED:
                return
            self.check_here(live)
            if reason is not EndReason.DELETED and due(live.session, self._clock()) is None:
                return  # extended while this waited
            removing = live.sandbox_record(Purpose.REMOVING)
            # All of it before the first await: whoever is cut short here leaves nothing half done.
            live.sandbox, live.session = None, end(live.session, reason, self._clock())
            self.table.remember(replace(live.record, env={}))
            tasks = live.stop_tasks()
            self._removals.let_go(live.session.id, removing)
            await self._transitions.save(live.record, removing)
            reached(Step.END_RECORDED)
            log.info("session ended", session=live.session.id, reason=reason.value)
            if tasks:
                await asyncio.wait(tasks)
        await self.tell(live)

    def check_here(self, live: Live) -> None:
        """It may have been given up while a call waited for its turn."""
        if live.given_up:
            raise Unavailable(
                f"session {live.session.id} is another worker's now; ask the fleet again",
                retry_after_s=0.5,
                details={"reason": "not_here"},
            )

    async def give_up(self, live: Live) -> None:
        """It is another worker's now. Who is waiting for a command here hears that its sandbox is lost."""
        async with live.changing:
            if live.session.state is SessionState.ENDED or live.given_up:
                return
            live.given_up = True
            removing = live.sandbox_record(Purpose.REMOVING)
            self.table.drop(live.session.id)
            reason = "another worker has taken the session over, with a new sandbox"
            live.sandbox = None
            live.session = lose(live.session, loss_report(live.session, reason, self._clock()))
            tasks = live.stop_tasks()
            self._removals.let_go(live.session.id, removing)
            self._transitions.superseded(live.session.id)
            log.warning("session given up", session=live.session.id, generation=live.session.generation)
            with contextlib.suppress(StorageProblem):  # the next life is told again
                await self._store.forget_session(live.session.id, removing)
            if tasks:
                await asyncio.wait(tasks)

    async def finish_removal(self, session_id: str) -> None:
        await self._removals.finish(session_id)

    async def expire(self, live: Live) -> None:
        """Ends a session whose time is over, unless something still runs in it: that was accepted, and is let
        finish."""
        reason = due(live.session, self._clock())
        if reason is None or live.deciding is not None:
            return
        if live.calls and not self._overdue(live):
            return
        live.deciding = asyncio.get_running_loop().create_future()
        try:
            if not await self._runs_something(live):
                await self._retire(live, reason)
            elif reason is EndReason.IDLE:
                live.touch()
        finally:
            live.deciding.set_result(None)
            live.deciding = None

    def _overdue(self, live: Live) -> bool:
        """So long over that nothing which was accepted in time can still run."""
        now = self._clock()
        return now - (live.session.expires_at or now) > self._options.max_exec_timeout_s

    async def _runs_something(self, live: Live) -> bool:
        if self._overdue(live):
            return False
        if live.sandbox is None:
            return live.preparing is not None
        try:
            async with asyncio.timeout(ASK_WITHIN_S):
                return any(known.running for known in await live.sandbox.list_execs())
        except (SandlotError, TimeoutError):
            return True

    def remove_in_background(self, sandbox_id: str) -> None:
        self._removals.begin(sandbox_id)

    async def close(self) -> None:
        """Lets go of all; sandboxes of sessions stay."""
        tasks = [task for live in self.table for task in live.stop_tasks()]
        tasks += self._removals.under_way
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_WITHIN_S)
        with contextlib.suppress(SandlotError):
            await self.save_activity()

    async def save_activity(self) -> None:
        """When sessions were last active: written in bulk, now and then; with it what could not be written
        before.
        """
        await self._transitions.save_late()
        unsaved = [live for live in self.table if live.unsaved]
        if unsaved:
            await self._store.save_activity([live.session for live in unsaved])
            for live in unsaved:
                live.unsaved = False
