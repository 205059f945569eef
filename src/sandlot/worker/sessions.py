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

import structlog

from sandlot.domain.environment import Recipe
from sandlot.domain.errors import (
    InvalidRequest,
    LinkInterrupted,
    SandboxLost,
    SandlotError,
    StorageFull,
    Unavailable,
    Unsupported,
)
from sandlot.domain.ids import new_session_id
from sandlot.domain.recovery import Purpose, SandboxRecord
from sandlot.domain.session import (
    DEFAULT_ENVIRONMENT,
    CreateSession,
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
    recreate,
    resolve_timeout,
)
from sandlot.providers.base import Sandbox
from sandlot.worker.failpoints import Step, reached
from sandlot.worker.live import Live
from sandlot.worker.options import WorkerOptions
from sandlot.worker.pool import Pool
from sandlot.worker.sandboxes import Sandboxes
from sandlot.worker.store import SessionRecord, Store
from sandlot.worker.table import SessionTable

log = structlog.get_logger("sandlot.sessions")

# Warm sandboxes that may turn out dead within one create before it gives up.
MAX_DEAD_CLAIMS = 5
# Seconds in which a warm sandbox takes its variables; one that does not is as good as dead.
BIND_WITHIN_S = 3.0
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
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.table = SessionTable(clock)
        self._store = store
        self._sandboxes = sandboxes
        self._pools = pools
        self._recipes = recipes
        self._options = options
        self._clock = clock
        self._opening = 0
        # session → sandboxes that were its own, until they are gone
        self._unremoved: dict[str, set[str]] = {}
        self._unsaved: dict[str, SessionRecord] = {}  # transitions that a full disk did not take
        self._removals: set[asyncio.Task[None]] = set()

    @property
    def calls(self) -> int:
        """How many are under way."""
        return sum(live.calls for live in self.table)

    @property
    def in_use(self) -> bool:
        """Whether anybody waits for an answer or reads a command's events."""
        return any(live.calls or live.readers for live in self.table)

    # --- opening ------------------------------------------------------------------------------

    async def open(self, tenant: str, request: CreateSession, digest: str) -> Live:
        recipe = self._recipe(request.environment)
        if len(self.table) + self._opening >= self._options.max_sessions:
            raise Unavailable(
                f"this worker holds {self._options.max_sessions} sessions and takes no more; delete some",
                retry_after_s=5.0,
                details={"reason": "capacity"},
            )
        now = self._clock()
        session = Session(
            id=new_session_id(),
            environment=recipe.environment.name,
            created_at=now,
            last_active_at=now,
            tenant=tenant,
            thread=request.thread,
            idle_timeout_s=self._timeout(request.idle_timeout_s, recipe.idle_timeout_s),
            lifetime_s=self._timeout(request.lifetime_s, recipe.lifetime_s),
            limits=request.limits.apply(recipe.environment.limits),
            metadata=dict(request.metadata),
            predecessor=self.table.before_in_thread(tenant, request.thread),
        )
        record = SessionRecord(session, dict(request.env), request.idempotency_key, digest)
        self._opening += 1
        try:
            record, sandbox = await self._equip(record, recipe, self._born)
        finally:
            self._opening -= 1
        live = self.table.add(record)
        self._start(live, sandbox, recipe)
        return live

    def _born(self, session: Session, sandbox_id: str) -> Session:
        """Its time begins when it has a sandbox, not when it began to wait for one."""
        now = self._clock()
        return replace(session, sandbox_id=sandbox_id, created_at=now, last_active_at=now)

    async def recreate(self, live: Live) -> None:
        async with live.changing:
            recipe = self._recipe(live.session.environment)
            if live.session.state is not SessionState.LOST:
                recreate(live.session, "", self._clock())  # says why not
            record, sandbox = await self._equip(
                live.record,
                recipe,
                lambda session, sandbox_id: recreate(session, sandbox_id, self._clock()),
            )
            live.record = record
            self._start(live, sandbox, recipe)

    async def _equip(
        self, record: SessionRecord, recipe: Recipe, given: Callable[[Session, str], Session]
    ) -> tuple[SessionRecord, Sandbox]:
        """A sandbox for the session, on record as its own, with its variables in it.

        One that turns out dead is replaced within the same request. Recorded before it is bound: a warm
        sandbox that carries somebody's variables must never look like a warm one.
        """
        for _ in range(MAX_DEAD_CLAIMS):
            sandbox = await self._claim(record.session, recipe)
            equipped = replace(record, session=given(record.session, sandbox.id))
            owned = SandboxRecord(sandbox.id, recipe.environment.name, Purpose.SESSION)
            self._sandboxes.know(owned)
            try:
                await self._save_late()  # the thread may still be on record as that of a session which ended
                await self._store.claim(equipped, owned)
                reached(Step.SESSION_RECORDED)
                async with asyncio.timeout(BIND_WITHIN_S):
                    await sandbox.bind(env=record.env, max_execs=self._options.max_execs)
                reached(Step.SESSION_BOUND)
                return equipped, sandbox
            except (SandboxLost, LinkInterrupted, TimeoutError):
                self._pools[recipe.environment.name].missed("warm_died")
                self.remove_in_background(sandbox.id)
            except BaseException:
                self.remove_in_background(sandbox.id)
                await self._unrecord(record)
                raise
        await self._unrecord(record)
        raise Unavailable(
            f"{MAX_DEAD_CLAIMS} sandboxes in a row died before they could be used; see `sandlot doctor`",
            retry_after_s=5.0,
            details={"reason": "sandboxes_die"},
        )

    async def _unrecord(self, record: SessionRecord) -> None:
        """Back to what was on record before: a lost session as it was, or one that never was."""
        with contextlib.suppress(StorageFull):
            if record.session.state is SessionState.LOST:
                await self._store.save([record])
            else:
                await self._store.forget_session(record.session.id)

    async def _claim(self, session: Session, recipe: Recipe) -> Sandbox:
        pool = self._pools[recipe.environment.name]
        if self._sandboxes.can_update(recipe.environment, session.limits):
            return await pool.claim(session.tenant)
        # These limits are fixed when a sandbox is made: it is made for this request.
        pool.missed("limits_fixed")
        environment = replace(recipe.environment, limits=session.limits)
        try:
            async with asyncio.timeout(self._options.queue_timeout_s), self._sandboxes.slots:
                return await self._sandboxes.make(environment)
        except TimeoutError:
            raise Unavailable(
                f"no sandbox could be made within {self._options.queue_timeout_s:g} s",
                retry_after_s=5.0,
                details={"reason": "queue"},
            ) from None

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
            idle_timeout_s = self._timeout(change.idle_timeout_s, live.session.idle_timeout_s)
            lifetime_s = self._timeout(change.lifetime_s, live.session.lifetime_s)
            metadata = live.session.metadata if change.metadata is None else dict(change.metadata)

            def changed(session: Session) -> Session:
                return replace(
                    session, idle_timeout_s=idle_timeout_s, lifetime_s=lifetime_s, metadata=metadata
                )

            await self._store.save([replace(live.record, session=changed(live.session))])
            self._unsaved.pop(live.session.id, None)
            live.session = changed(live.session)  # a call may have touched it meanwhile
        live.touch()
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
            self._let_go(live.session.id, removing)
            await self._save(live.record, removing)
            reached(Step.LOSS_RECORDED)

    async def end(self, live: Live, reason: EndReason) -> None:
        """When it returns, no process of the session is left."""
        await self._retire(live, reason)
        await self.finish_removal(live.session.id)

    async def _retire(self, live: Live, reason: EndReason) -> None:
        """Ended from here on; its sandbox is on its way out."""
        async with live.changing:
            if live.session.state is SessionState.ENDED:
                return
            if reason is not EndReason.DELETED and due(live.session, self._clock()) is None:
                return  # extended while this waited
            removing = live.sandbox_record(Purpose.REMOVING)
            # All of it before the first await: whoever is cut short here leaves nothing half done.
            live.sandbox, live.session = None, end(live.session, reason, self._clock())
            self.table.remember(replace(live.record, env={}))
            tasks = live.stop_tasks()
            self._let_go(live.session.id, removing)
            await self._save(live.record, removing)
            reached(Step.END_RECORDED)
            log.info("session ended", session=live.session.id, reason=reason.value)
            if tasks:
                await asyncio.wait(tasks)

    async def finish_removal(self, session_id: str) -> None:
        """What a session has left goes; if the engine fails, it is told and may be asked again."""
        for sandbox_id in list(self._unremoved.get(session_id, ())):
            await self._sandboxes.remove(sandbox_id)
            self._gone(session_id, sandbox_id)

    def _let_go(self, session_id: str, sandbox: SandboxRecord | None) -> None:
        """The session's sandbox is to be removed: now, by a delete that waits for it, or by the sweep."""
        if sandbox is None:
            return
        self._sandboxes.doom(sandbox.id)
        self._unremoved.setdefault(session_id, set()).add(sandbox.id)
        self.remove_in_background(sandbox.id, session_id)

    def _gone(self, session_id: str, sandbox_id: str) -> None:
        left = self._unremoved.get(session_id)
        if left is not None:
            left.discard(sandbox_id)
            if not left:
                del self._unremoved[session_id]

    async def _save(self, record: SessionRecord, removing: SandboxRecord | None) -> None:
        """A disk that is full must not keep anybody from ending what uses it: it is written later."""
        self._unsaved.pop(record.session.id, None)  # this is later
        try:
            await self._store.save([record], removing)
        except StorageFull as error:
            log.warning("not written yet", session=record.session.id, error=error.message)
            self._unsaved[record.session.id] = record

    async def _save_late(self) -> None:
        while self._unsaved:
            session_id, record = next(iter(self._unsaved.items()))
            await self._store.save([record])
            if self._unsaved.get(session_id) is record:
                del self._unsaved[session_id]

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

    def remove_in_background(self, sandbox_id: str, session_id: str = "") -> None:
        async def removing() -> None:
            if await self._sandboxes.remove_later(sandbox_id):
                self._gone(session_id, sandbox_id)

        task = asyncio.create_task(removing(), name=f"remove {sandbox_id}")
        self._removals.add(task)
        task.add_done_callback(self._removals.discard)

    async def close(self) -> None:
        """Lets go of all; sandboxes of sessions stay."""
        tasks = [task for live in self.table for task in live.stop_tasks()]
        tasks += self._removals
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_WITHIN_S)
        with contextlib.suppress(SandlotError):
            await self.save_activity()

    async def save_activity(self) -> None:
        """When sessions were last active: written in bulk, now and then; with it what could not be written
        before.
        """
        await self._save_late()
        unsaved = [live for live in self.table if live.unsaved]
        if unsaved:
            await self._store.save_activity([live.session for live in unsaved])
            for live in unsaved:
                live.unsaved = False
