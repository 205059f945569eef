"""Opens sessions: new ones, ones taken over from a worker that is gone, and recreated ones.

Each decision is recorded before it is performed. ``lifecycle`` has the rest of a session's life.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial

from sandlot.domain.artifacts.patterns import check_patterns
from sandlot.domain.callers.principal import Principal
from sandlot.domain.capacity.limits import grant_limits
from sandlot.domain.environment import Recipe, unknown_environment_error
from sandlot.domain.errors import NotFound, SandlotError, StorageFull, Unavailable
from sandlot.domain.ids import new_session_id
from sandlot.domain.metrics.figures import Figures
from sandlot.domain.metrics.table import SESSION_OPEN_SECONDS, SESSIONS_OPENED
from sandlot.domain.recovery import Purpose
from sandlot.domain.session import (
    DEFAULT_ENVIRONMENT,
    Assignment,
    CreateSession,
    EndReason,
    LossReport,
    Session,
    SessionState,
)
from sandlot.domain.session_states import (
    end,
    ended_error,
    expiry_reason,
    latest_predecessor,
    mark_worker_lost,
    recreate,
    restore_report,
    restored,
    wake,
)
from sandlot.providers.base import Sandbox
from sandlot.worker.capacity import Capacity
from sandlot.worker.failpoints import Step, reached
from sandlot.worker.network.networks import Networks
from sandlot.worker.quotas import Quotas
from sandlot.worker.refusals import no_room_on_disk
from sandlot.worker.registrar import Registrar
from sandlot.worker.sessions.elsewhere import check_request
from sandlot.worker.sessions.exported_files import (
    has_outlived,
    save_taken_over,
    with_exported,
    without_workspace,
)
from sandlot.worker.sessions.lifecycle import SessionLifecycle
from sandlot.worker.sessions.live_session import LiveSession
from sandlot.worker.sessions.provisioning import Provisioning, Report
from sandlot.worker.sessions.starting import Starting
from sandlot.worker.store.database import SessionRecord
from sandlot.worker.store.transitions import Transitions
from sandlot.worker.volumes.volumes import Volumes
from sandlot.worker.workspaces.workspaces import Source, Workspaces


class Opening:
    def __init__(
        self,
        sessions: SessionLifecycle,
        *,
        provisioning: Provisioning,
        transitions: Transitions,
        starting: Starting,
        recipes: Mapping[str, Recipe],
        capacity: Capacity,
        quotas: Quotas,
        registrar: Registrar,
        networks: Networks,
        workspaces: Workspaces,
        volumes: Volumes,
        figures: Figures,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.sessions = sessions
        self._table = sessions.table
        self._provisioning = provisioning
        self._transitions = transitions
        self._recipes = recipes
        self._capacity = capacity
        self._quotas = quotas
        self._registrar = registrar
        self.networks = networks
        self.workspaces = workspaces
        self.volumes = volumes
        self.starting = starting
        self._figures = figures
        self._clock = clock
        sessions.wake = self.wake

    async def open(
        self, principal: Principal, request: CreateSession, digest: str, assignment: Assignment
    ) -> LiveSession:
        began = self._clock()
        self._capacity.check_session_count()
        session_id = new_session_id() if assignment.lost is None else assignment.lost.id
        self._table.opening[session_id] = principal.tenant
        try:
            counted: AbstractContextManager[None] = nullcontext()
            if assignment.lost is None:
                session = self._new_session(session_id, principal, request, assignment)
                if request.snapshot is not None:
                    await self.workspaces.find_snapshot(principal.tenant, request.snapshot)
                volumes = await self.volumes.resolve(principal.tenant, request.volumes)
                session = replace(session, volumes=volumes)
                counted = self._quotas.counted(principal, session)
                provision = self._provision_new
            else:
                session, provision = await self._take_over(assignment.lost), self._provision_taken_over
            recipe = self._recipe(session.environment)
            record = SessionRecord(session, dict(request.env), request.idempotency_key, digest)
            # Added to the table last: no client may find a session that could still fail to open.
            opening = self._registrar.opening(session_id, new=assignment.lost is None)
            with counted, self._capacity.reserved(session), self.volumes.claimed(session), opening:
                try:
                    record, sandbox = await provision(
                        record,
                        recipe,
                        partial(self._register, assignment.reservation),
                        Source(snapshot=request.snapshot),
                    )
                except StorageFull as error:
                    raise no_room_on_disk(error.message) from error
                live_session = self._table.add(record)
        finally:
            self._table.opening.pop(session_id, None)
        live_session.reservation = assignment.reservation
        if assignment.lost is None:
            self.sessions.history.recorder.session_created(live_session.session)
        self._opened(live_session.session, "created" if assignment.lost is None else "taken_over", began)
        self.starting.start(live_session, sandbox, recipe)
        return live_session

    def _opened(self, session: Session, way: str, began: float) -> None:
        self._figures.count(SESSIONS_OPENED, session.environment, way)
        self._figures.observe(SESSION_OPEN_SECONDS, self._clock() - began, session.environment, way)

    async def _provision_new(
        self, record: SessionRecord, recipe: Recipe, report: Report, source: Source
    ) -> tuple[SessionRecord, Sandbox]:
        return await self._provisioning.provision(
            record, recipe, self._with_first_sandbox, previous=None, report=report, source=source
        )

    async def _provision_taken_over(
        self, record: SessionRecord, recipe: Recipe, report: Report, source: Source
    ) -> tuple[SessionRecord, Sandbox]:
        """Provision first and report then: a reported take-over cannot be undone.

        The session's files were lost with its worker, unless they were exported.
        """
        session, source = await with_exported(self.workspaces, record.session)
        record, sandbox = await self._provisioning.provision(
            replace(record, session=session), recipe, self._recreated, previous=None, source=source
        )
        try:
            await report(record)
        except BaseException:
            await self._revert_to_lost(record)
            raise
        await save_taken_over(self.workspaces, record.session)
        return record, sandbox

    async def _register(self, reservation: str | None, record: SessionRecord) -> None:
        try:
            await self._registrar.opened(record.session, record.idempotency_key, reservation)
        except SandlotError:
            raise
        except Exception as error:
            raise Unavailable("The session could not be recorded. Retry.", retry_after_s=1.0) from error

    def _new_session(
        self, session_id: str, principal: Principal, request: CreateSession, assignment: Assignment
    ) -> Session:
        recipe = self._recipe(request.environment)
        check_request(request, recipe.environment)
        record = request.record or recipe.record
        self.sessions.history.recordings.check_asked(record)
        self.networks.check_asked(recipe, request.network)
        now = self._clock()
        return Session(
            id=session_id,
            environment=recipe.environment.name,
            created_at=now,
            last_active_at=now,
            tenant=principal.tenant,
            created_by=principal.key_id,
            record=record,
            network=request.network,
            thread=request.thread,
            idle_timeout_s=self.sessions.timeout(request.idle_timeout_s, recipe.idle_timeout_s),
            lifetime_s=self.sessions.timeout(request.lifetime_s, recipe.lifetime_s),
            limits=grant_limits(
                request.limits, recipe.environment.limits, recipe.ceilings, recipe.environment.name
            ),
            metadata=dict(request.metadata),
            artifacts=check_patterns((*recipe.artifacts, *request.artifacts)),
            on_idle=self.workspaces.on_idle(request.on_idle, recipe.environment),
            hibernation_s=self.workspaces.options.hibernation_s,
            predecessor=latest_predecessor(
                self._table.last_ended_in_thread(principal.tenant, request.thread), assignment.predecessor
            ),
        )

    def _with_first_sandbox(self, session: Session, sandbox_id: str) -> Session:
        """The session with its first sandbox.

        Its lifetime starts now, not when it began to wait.
        """
        now = self._clock()
        return replace(session, sandbox_id=sandbox_id, created_at=now, last_active_at=now)

    async def _take_over(self, lost: Session) -> Session:
        """A session whose worker is gone, in the state before it gets a sandbox here."""
        known = self._table.ended(lost.id)
        if known is not None and known.generation >= lost.generation:
            raise ended_error(known)
        now = self._clock()
        lost = mark_worker_lost(lost, now)
        if await has_outlived(self.workspaces, lost, now):
            if expiry_reason(lost, now) is EndReason.LIFETIME:
                lost = replace(lost, woken_at=now)
        elif lost.state is not SessionState.ENDED:
            # Its worker is gone, so this worker must end and report it.
            lost = end(lost, EndReason.LIFETIME, now)
            self._table.add_ended(SessionRecord(lost))
            self.sessions.history.ended(lost)
            await self._transitions.save(SessionRecord(lost), None)
            await self._registrar.changed(lost, None)
        if lost.state is SessionState.ENDED:
            raise ended_error(lost)
        return lost

    def _recreated(self, session: Session, sandbox_id: str) -> Session:
        return recreate(session, sandbox_id, self._clock())

    async def _revert_to_lost(self, record: SessionRecord) -> None:
        """Keep a session that was taken over, but without a sandbox. The fleet may already believe
        that it is here, and without this no one would report its loss.
        """
        # It keeps its old loss report and generation. The new generation never existed, and must
        # not outrank a worker that comes back.
        generation = record.session.generation - 1
        lost = replace(record.session, state=SessionState.LOST, generation=generation, sandbox_id=None)
        live_session = self._table.add(replace(record, session=lost))
        await self._provisioning.undo(record, live_session.record)
        await self.sessions.report(live_session)

    async def recreate(self, live_session: LiveSession) -> None:
        """Give a lost session a new sandbox. The fleet must record it as it records a create:
        otherwise another worker could create the same generation too.
        """
        if live_session.unresponsive_since is not None:
            await self.sessions.record_loss(
                live_session, live_session.sandbox, "it did not answer, and was given up on request"
            )
        async with live_session.transition_lock:
            self.sessions.check_not_given_up(live_session)
            if live_session.session.state is SessionState.HIBERNATED:
                await self._wake(live_session)
                return
            if live_session.session.state is not SessionState.LOST:
                recreate(live_session.session, "", self._clock())  # raises the right error
            await self._give_sandbox(live_session, self._recreated)

    async def wake(self, live_session: LiveSession) -> None:
        """Give a hibernated session a sandbox with its files, however many calls ask for it at once."""
        async with live_session.transition_lock:
            self.sessions.check_not_given_up(live_session)
            if live_session.session.state is SessionState.HIBERNATED:
                await self._wake(live_session)

    async def _wake(self, live_session: LiveSession) -> None:
        self._capacity.check_session_count()
        await self._give_sandbox(live_session, self._woken)

    def _woken(self, session: Session, sandbox_id: str) -> Session:
        return wake(session, sandbox_id, self._clock())

    async def _give_sandbox(
        self, live_session: LiveSession, assign: Callable[[Session, str], Session]
    ) -> None:
        """Give a session that has none a sandbox with its files."""
        began = self._clock()
        way = "woken" if live_session.session.state is SessionState.HIBERNATED else "recreated"
        recipe = self._recipe(live_session.session.environment)
        # Until its old sandbox is gone, that one has its files.
        await self.sessions.finish_removal(live_session.session.id)
        sandbox = None
        if (workspace := live_session.session.workspace) is not None:
            try:
                sandbox = await self._provision_again(live_session, recipe, assign, Source(workspace))
            except NotFound:
                live_session.session = without_workspace(live_session.session)
        if sandbox is None:
            live_session.session, source = await with_exported(self.workspaces, live_session.session)
            sandbox = await self._provision_again(live_session, recipe, assign, source)
            await save_taken_over(self.workspaces, live_session.session)
        self._opened(live_session.session, way, began)
        self.starting.start(live_session, sandbox, recipe)

    async def replace_sandbox(self, live_session: LiveSession, snapshot_id: str) -> LossReport:
        """Give a session a new sandbox with the files of a snapshot, and report what that took from it.

        When this returns, no process of the old sandbox is left.
        """
        began = self._clock()
        async with live_session.transition_lock:
            if live_session.session.state is SessionState.ENDED:
                raise ended_error(live_session.session)
            self.sessions.check_not_given_up(live_session)
            recipe = self._recipe(live_session.session.environment)
            report = restore_report(live_session.session, snapshot_id, self._clock())

            def assign(session: Session, sandbox_id: str) -> Session:
                return restored(session, sandbox_id, report, self._clock())

            old = live_session.session
            removing = live_session.sandbox_record(Purpose.REMOVING)
            source = Source(snapshot=snapshot_id)
            sandbox = await self._provision_again(live_session, recipe, assign, source)
            tasks = live_session.stop_tasks()
            live_session.mark_responsive()
            self.sessions.history.replaced(live_session.session)
            self.starting.start(live_session, sandbox, recipe, without_volumes=old.sandbox_id is not None)
            self._opened(old, "restored", began)
            self.sessions.release(old.id, removing, old.workspace)
            if tasks:
                await asyncio.wait(tasks)
            reached(Step.FILES_REPLACED)
        await self.sessions.finish_removal(old.id)
        return report

    async def _provision_again(
        self,
        live_session: LiveSession,
        recipe: Recipe,
        assign: Callable[[Session, str], Session],
        source: Source,
    ) -> Sandbox:
        """Give a session that is in the table another sandbox, in its record and in the fleet's.

        If it has one now, that one keeps the volumes, until it is gone.
        """
        session = live_session.session
        with self._capacity.reserved(session), self.volumes.claimed(session):
            record, sandbox = await self._provisioning.provision(
                live_session.record,
                recipe,
                assign,
                previous=live_session.record,
                source=source,
                with_volumes=session.sandbox_id is None,
            )
            try:
                await self._register(None, record)
            except BaseException:
                await self._provisioning.undo(record, live_session.record)
                raise
            live_session.record = record
        return sandbox

    def keeps_files(self, environment: str) -> bool:
        """Whether files outlive sandboxes there. For an environment that is gone, they did."""
        recipe = self._recipes.get(environment)
        return recipe is None or recipe.environment.keeps_files

    def _recipe(self, name: str | None) -> Recipe:
        asked = name or DEFAULT_ENVIRONMENT
        recipe = self._recipes.get(asked)
        if recipe is None:
            raise unknown_environment_error(
                asked, {known: recipe.environment.tier for known, recipe in self._recipes.items()}
            )
        return recipe
