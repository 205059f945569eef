"""How sessions come to be: new, taken over from a worker that is gone, or made anew after a loss.

What is decided is written down first and done then. What becomes of a session afterwards is in ``sessions``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import structlog

from sandlot.domain.environment import Recipe, no_environment
from sandlot.domain.errors import SandlotError, StorageFull, Unavailable, Unsupported
from sandlot.domain.ids import new_session_id
from sandlot.domain.limits import granted
from sandlot.domain.session import (
    DEFAULT_ENVIRONMENT,
    Assignment,
    CreateSession,
    EndReason,
    Session,
    SessionState,
    due,
    end,
    ended_error,
    latest,
    recreate,
    without_worker,
)
from sandlot.providers.base import Sandbox
from sandlot.worker.capacity import Capacity
from sandlot.worker.equipping import Equipping, Tell
from sandlot.worker.live import Live
from sandlot.worker.refusals import no_room_on_disk
from sandlot.worker.registrar import Registrar
from sandlot.worker.sandboxes import Sandboxes
from sandlot.worker.sessions import Sessions
from sandlot.worker.store import SessionRecord
from sandlot.worker.transitions import Transitions

log = structlog.get_logger("sandlot.opening")


class Opening:
    def __init__(
        self,
        sessions: Sessions,
        *,
        equipping: Equipping,
        transitions: Transitions,
        sandboxes: Sandboxes,
        recipes: Mapping[str, Recipe],
        capacity: Capacity,
        registrar: Registrar,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.sessions = sessions
        self._table = sessions.table
        self._equipping = equipping
        self._transitions = transitions
        self._sandboxes = sandboxes
        self._recipes = recipes
        self._capacity = capacity
        self._registrar = registrar
        self._clock = clock

    async def open(self, tenant: str, request: CreateSession, digest: str, assignment: Assignment) -> Live:
        self._capacity.check_count()
        session_id = new_session_id() if assignment.lost is None else assignment.lost.id
        self._table.opening.add(session_id)
        try:
            if assignment.lost is None:
                session = self._new(session_id, tenant, request, assignment)
                equipped = self._equipped_new
            else:
                session, equipped = await self._taken_over(assignment.lost), self._equipped_anew
            recipe = self._recipe(session.environment)
            record = SessionRecord(session, dict(request.env), request.idempotency_key, digest)
            # In the table last: nobody is to find a session that may turn out never to have been.
            opening = self._registrar.opening(session_id, new=assignment.lost is None)
            with self._capacity.admitted(session), opening:
                try:
                    record, sandbox = await equipped(
                        record, recipe, partial(self._record, assignment.reservation)
                    )
                except StorageFull as error:
                    raise no_room_on_disk(error.message) from error
                live = self._table.add(record)
        finally:
            self._table.opening.discard(session_id)
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
            idle_timeout_s=self.sessions.timeout(request.idle_timeout_s, recipe.idle_timeout_s),
            lifetime_s=self.sessions.timeout(request.lifetime_s, recipe.lifetime_s),
            limits=granted(
                request.limits, recipe.environment.limits, recipe.ceilings, recipe.environment.name
            ),
            metadata=dict(request.metadata),
            predecessor=latest(self._table.before_in_thread(tenant, request.thread), assignment.predecessor),
        )

    def _born(self, session: Session, sandbox_id: str) -> Session:
        """Its time begins when it has a sandbox, not when it began to wait for one."""
        now = self._clock()
        return replace(session, sandbox_id=sandbox_id, created_at=now, last_active_at=now)

    async def _taken_over(self, lost: Session) -> Session:
        """A session whose worker is gone, as it is before it gets a sandbox here."""
        known = self._table.ended(lost.id)
        if known is not None and known.generation >= lost.generation:
            raise ended_error(known)
        now = self._clock()
        lost = without_worker(lost, now)
        if due(lost, now) is EndReason.LIFETIME:
            # Nobody else is left who could say so.
            lost = end(lost, EndReason.LIFETIME, now)
            self._table.remember(SessionRecord(lost))
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
        live = self._table.add(replace(record, session=lost))
        await self._equipping.undo(record, live.record)
        await self.sessions.tell(live)

    async def recreate(self, live: Live) -> None:
        """A create, to a fleet: a generation that it has not heard of may be made on another worker too."""
        if live.unresponsive_since is not None:
            await self.sessions.lost(live, live.sandbox, "it did not answer, and was given up on request")
        async with live.changing:
            self.sessions.check_here(live)
            recipe = self._recipe(live.session.environment)
            if live.session.state is not SessionState.LOST:
                recreate(live.session, "", self._clock())  # says why not
            with self._capacity.admitted(live.session):
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

    def _start(self, live: Live, sandbox: Sandbox, recipe: Recipe) -> None:
        """From here the session is used. Limits other than the pool's are set before its first call is let
        in.
        """
        live.sandbox, live.preparing = sandbox, None
        limits, made_with = live.session.limits, recipe.environment.limits
        if limits != made_with and self._sandboxes.can_update(recipe.environment, limits):
            live.preparing = asyncio.create_task(self._set_limits(live, sandbox))
        self.sessions.watch(live)

    async def _set_limits(self, live: Live, sandbox: Sandbox) -> None:
        """Nobody is let in before: a sandbox with other limits than its session's is given up instead."""
        try:
            await self._sandboxes.update_limits(sandbox.id, live.session.limits)
        except Exception as error:
            why = error.message if isinstance(error, SandlotError) else repr(error)
            log.exception("limits could not be set", session=live.session.id)
            await self.sessions.lost(live, sandbox, f"its limits could not be set: {why}")
        # Not in a finally: where this is cut short, ``preparing`` stays, and keeps calls out.
        if live.preparing is asyncio.current_task():  # not that of a later sandbox
            live.preparing = None

    def _recipe(self, name: str | None) -> Recipe:
        asked = name or DEFAULT_ENVIRONMENT
        recipe = self._recipes.get(asked)
        if recipe is None:
            raise no_environment(asked, {name: one.environment.tier for name, one in self._recipes.items()})
        return recipe

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
