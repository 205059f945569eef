"""What becomes of sessions: opened, used, changed, lost, made anew, ended.

The rules are in ``domain.session``. This performs them: what is decided is written down first and done then,
so that a worker that dies in between finds on its next start what remains to be done.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from functools import partial

import structlog

from sandlot.domain.environment import Recipe
from sandlot.domain.errors import (
    InvalidRequest,
    SandboxLost,
    SandlotError,
    StorageFull,
    Unavailable,
    Unsupported,
)
from sandlot.domain.ids import new_session_id
from sandlot.domain.recovery import Purpose
from sandlot.domain.session import (
    DEFAULT_ENVIRONMENT,
    Assignment,
    CreateSession,
    EndReason,
    Session,
    SessionChange,
    SessionState,
    Timeout,
    due,
    end,
    ended_error,
    latest,
    lose,
    loss_report,
    lost_error,
    recreate,
    resolve_timeout,
    without_worker,
)
from sandlot.providers.base import Sandbox
from sandlot.worker.equipping import Equipping, Tell
from sandlot.worker.failpoints import Step, reached
from sandlot.worker.live import Live
from sandlot.worker.options import WorkerOptions
from sandlot.worker.pool import Pool
from sandlot.worker.registrar import Registrar
from sandlot.worker.removals import Removals
from sandlot.worker.sandboxes import Sandboxes
from sandlot.worker.store import SessionRecord, Store
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
        sandboxes: Sandboxes,
        pools: Mapping[str, Pool],
        recipes: Mapping[str, Recipe],
        options: WorkerOptions,
        registrar: Registrar,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.table = SessionTable(clock)
        self._store = store
        self._sandboxes = sandboxes
        self._recipes = recipes
        self._options = options
        self._registrar = registrar
        self._clock = clock
        self._removals = Removals(sandboxes)
        self._transitions = Transitions(store)
        self._equipping = Equipping(store, sandboxes, pools, options, self._removals, self._transitions)

    @property
    def calls(self) -> int:
        """How many are under way."""
        return sum(live.calls for live in self.table)

    @property
    def in_use(self) -> bool:
        """Whether anybody waits for an answer or reads a command's events."""
        return any(live.calls or live.readers for live in self.table)

    @property
    def free(self) -> int:
        """How many more may be opened."""
        return max(0, self._options.max_sessions - len(self.table) - len(self.table.opening))

    # --- opening ------------------------------------------------------------------------------

    async def open(self, tenant: str, request: CreateSession, digest: str, assignment: Assignment) -> Live:
        if self.free == 0:
            raise Unavailable(
                f"this worker holds {self._options.max_sessions} sessions and takes no more; delete some",
                retry_after_s=5.0,
                details={"reason": "capacity"},
            )
        session_id = new_session_id() if assignment.lost is None else assignment.lost.id
        self.table.opening.add(session_id)
        try:
            if assignment.lost is None:
                session = self._new(session_id, tenant, request, assignment)
                equipped = self._equipped_new
            else:
                session, equipped = await self._taken_over(assignment.lost), self._equipped_anew
            recipe = self._recipe(session.environment)
            record = SessionRecord(session, dict(request.env), request.idempotency_key, digest)
            # In the table last: nobody is to find a session that may turn out never to have been.
            with self._registrar.opening(session_id, new=assignment.lost is None):
                record, sandbox = await equipped(
                    record, recipe, partial(self._record, assignment.reservation)
                )
                live = self.table.add(record)
        finally:
            self.table.opening.discard(session_id)
        live.reservation = assignment.reservation
        self._start(live, sandbox, recipe)
        return live

    async def _equipped_new(
        self, record: SessionRecord, recipe: Recipe, tell: Tell
    ) -> tuple[SessionRecord, Sandbox]:
        return await self._equipping.equip(record, recipe, self._born, before=None, tell=tell)

    async def _equipped_anew(
        self, record: SessionRecord, recipe: Recipe, tell: Tell
    ) -> tuple[SessionRecord, Sandbox]:
        """Told when it has its sandbox: what was told of a take-over cannot be taken back."""
        record, sandbox = await self._equipping.equip(record, recipe, self._made_anew, before=None)
        try:
            await tell(record)
        except BaseException:
            await self._lose_again(record)
            raise
        return record, sandbox

    async def _record(self, reservation: str | None, record: SessionRecord) -> None:
        try:
            await self._registrar.opened(record.session, record.idempotency_key, reservation)
        except SandlotError:
            raise
        except Exception as error:
            raise Unavailable("the session could not be recorded; retry", retry_after_s=1.0) from error

    def _new(self, session_id: str, tenant: str, request: CreateSession, assignment: Assignment) -> Session:
        recipe = self._recipe(request.environment)
        now = self._clock()
        return Session(
            id=session_id,
            environment=recipe.environment.name,
            created_at=now,
            last_active_at=now,
            tenant=tenant,
            thread=request.thread,
            idle_timeout_s=self._timeout(request.idle_timeout_s, recipe.idle_timeout_s),
            lifetime_s=self._timeout(request.lifetime_s, recipe.lifetime_s),
            limits=request.limits.apply(recipe.environment.limits),
            metadata=dict(request.metadata),
            predecessor=latest(self.table.before_in_thread(tenant, request.thread), assignment.predecessor),
        )

    def _born(self, session: Session, sandbox_id: str) -> Session:
        """Its time begins when it has a sandbox, not when it began to wait for one."""
        now = self._clock()
        return replace(session, sandbox_id=sandbox_id, created_at=now, last_active_at=now)

    async def _taken_over(self, lost: Session) -> Session:
        """A session whose worker is gone, as it is before it gets a sandbox here."""
        known = self.table.ended(lost.id)
        if known is not None and known.generation >= lost.generation:
            raise ended_error(known)
        now = self._clock()
        lost = without_worker(lost, now)
        if due(lost, now) is EndReason.LIFETIME:
            # Nobody else is left who could say so.
            lost = end(lost, EndReason.LIFETIME, now)
            self.table.remember(SessionRecord(lost))
            await self._transitions.save(SessionRecord(lost), None)
            await self._registrar.changed(lost, None)
        if lost.state is SessionState.ENDED:
            raise ended_error(lost)
        return lost

    def _made_anew(self, session: Session, sandbox_id: str) -> Session:
        return recreate(session, sandbox_id, self._clock())

    async def _lose_again(self, record: SessionRecord) -> None:
        """One that was taken over stays, without a sandbox: the fleet may think that it is here already, and
        its loss would be told to nobody if it were not.
        """
        # As it was lost, with that report: this generation never was, and must not stand before a worker that
        # is back.
        generation = record.session.generation - 1
        lost = replace(record.session, state=SessionState.LOST, generation=generation, sandbox_id=None)
        live = self.table.add(replace(record, session=lost))
        await self._equipping.undo(record, live.record)
        await self._tell(live)

    async def recreate(self, live: Live) -> None:
        """A create, to a fleet: a generation that it has not heard of may be made on another worker too."""
        async with live.changing:
            self._check_here(live)
            recipe = self._recipe(live.session.environment)
            if live.session.state is not SessionState.LOST:
                recreate(live.session, "", self._clock())  # says why not
            record, sandbox = await self._equipping.equip(
                live.record, recipe, self._made_anew, before=live.record
            )
            try:
                await self._record(None, record)
            except BaseException:
                await self._equipping.undo(record, live.record)
                raise
            live.record = record
            self._start(live, sandbox, recipe)

    async def _tell(self, live: Live) -> None:
        await self._registrar.changed(live.session, live.record.idempotency_key)

    def _start(self, live: Live, sandbox: Sandbox, recipe: Recipe) -> None:
        """From here the session is used. Limits other than the pool's are set before its first call is let
        in.
        """
        live.sandbox = sandbox
        limits, made_with = live.session.limits, recipe.environment.limits
        if limits != made_with and self._sandboxes.can_update(recipe.environment, limits):
            live.preparing = asyncio.create_task(self._set_limits(live, sandbox))
        self.watch(live)

    async def _set_limits(self, live: Live, sandbox: Sandbox) -> None:
        try:
            await self._sandboxes.update_limits(sandbox.id, live.session.limits)
        except SandlotError as error:
            await self.lost(live, sandbox, f"its limits could not be set: {error.message}")
        finally:
            if live.preparing is asyncio.current_task():  # not that of a later sandbox
                live.preparing = None

    def _recipe(self, name: str | None) -> Recipe:
        recipe = self._recipes.get(name or DEFAULT_ENVIRONMENT)
        if recipe is None:
            known = ", ".join(sorted(self._recipes))
            raise InvalidRequest(f"there is no environment {name!r:.80}; this server has: {known}")
        return recipe

    def _timeout(self, asked: Timeout | None, configured: float | None) -> float | None:
        return resolve_timeout(asked, configured, never_allowed=self._options.allow_never)

    async def restore_limits(self, live: Live, sandbox: Sandbox) -> None:
        """After a restart: they may not have been set when the worker died."""
        recipe = self._recipes.get(live.session.environment)
        if recipe is None or live.session.limits == recipe.environment.limits:
            return
        if self._sandboxes.can_update(recipe.environment, live.session.limits):
            try:
                await self._sandboxes.update_limits(sandbox.id, live.session.limits)
            except Unsupported as error:  # the recipe has changed since; it keeps what it was made with
                log.warning("limits stay as they are", session=live.session.id, error=error.message)

    # --- using --------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def use(
        self, tenant: str, session_id: str, *, begins: bool = True
    ) -> AsyncIterator[tuple[Live, Sandbox]]:
        """A call on the session's sandbox. While it lasts, the session does not end by its age.

        ``begins``: something new begins, which a session whose lifetime is over refuses; looking is let in.
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
        try:
            sandbox = await live.usable()
            try:
                yield live, sandbox
            except SandboxLost as error:
                raise await self.explain(live, sandbox, error) from error
        finally:
            live.calls -= 1
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
            self._check_here(live)
            idle_timeout_s = self._timeout(change.idle_timeout_s, live.session.idle_timeout_s)
            lifetime_s = self._timeout(change.lifetime_s, live.session.lifetime_s)
            metadata = live.session.metadata if change.metadata is None else dict(change.metadata)

            def changed(session: Session) -> Session:
                return replace(
                    session, idle_timeout_s=idle_timeout_s, lifetime_s=lifetime_s, metadata=metadata
                )

            await self._store.save([replace(live.record, session=changed(live.session))])
            self._transitions.superseded(live.session.id)
            live.session = changed(live.session)  # a call may have touched it meanwhile
        live.touch()
        await self._tell(live)
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
            log.warning("sandbox lost", session=live.session.id, generation=report.generation, reason=reason)
            # Begun before the first await: whoever is cut short here leaves nothing behind.
            self._removals.let_go(live.session.id, removing)
            await self._transitions.save(live.record, removing)
            reached(Step.LOSS_RECORDED)
        await self._tell(live)

    async def end(self, live: Live, reason: EndReason) -> None:
        """When it returns, no process of the session is left."""
        await self._retire(live, reason)
        await self.finish_removal(live.session.id)

    async def _retire(self, live: Live, reason: EndReason) -> None:
        """Ended from here on; its sandbox is on its way out."""
        async with live.changing:
            if live.session.state is SessionState.ENDED:
                return
            self._check_here(live)
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
        await self._tell(live)

    def _check_here(self, live: Live) -> None:
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
            with contextlib.suppress(StorageFull):  # the next life is told again
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
