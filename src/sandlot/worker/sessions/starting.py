"""Puts a sandbox that a session has got into use: with limits, network and volumes that it did not have."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import structlog

from sandlot.domain.environment import Recipe
from sandlot.domain.errors import SandlotError, Unsupported
from sandlot.providers.base import Sandbox
from sandlot.worker.network.networks import Networks
from sandlot.worker.sessions.lifecycle import SessionLifecycle
from sandlot.worker.sessions.live_session import LiveSession
from sandlot.worker.store.sandboxes import Sandboxes
from sandlot.worker.volumes.volumes import Volumes

log = structlog.get_logger("sandlot.starting")


class Starting:
    def __init__(
        self,
        sessions: SessionLifecycle,
        sandboxes: Sandboxes,
        recipes: Mapping[str, Recipe],
        networks: Networks,
        volumes: Volumes,
    ) -> None:
        self._sessions = sessions
        self._sandboxes = sandboxes
        self._recipes = recipes
        self._networks = networks
        self._volumes = volumes

    def start(
        self, live_session: LiveSession, sandbox: Sandbox, recipe: Recipe, *, without_volumes: bool = False
    ) -> None:
        """Put the session into use. If its limits differ from the pool's, they are set before its
        first call is let in; the same goes for ports that a recreated session has forwarded, and for
        volumes that the session's last sandbox still has.
        """
        live_session.sandbox, live_session.preparing = sandbox, None
        self._sessions.history.claimed(live_session)
        self._networks.claimed(live_session, sandbox)
        limits, made_with = live_session.session.limits, recipe.environment.limits
        set_limits = limits != made_with and self._sandboxes.can_update(recipe.environment, limits)
        attach = without_volumes and bool(live_session.session.volumes)
        if set_limits or attach or self._networks.must_prepare(live_session):
            live_session.preparing = asyncio.create_task(
                self._prepare(live_session, sandbox, set_limits=set_limits, attach=attach)
            )
        self._sessions.watch(live_session)

    async def _prepare(
        self, live_session: LiveSession, sandbox: Sandbox, *, set_limits: bool, attach: bool
    ) -> None:
        """Set the sandbox's limits, open its forwarded ports and show it its volumes while calls wait. If
        that fails, the sandbox is given up: it must never run with other limits than its session's.
        """
        step = "its limits could not be set"
        try:
            if set_limits:
                await self._sandboxes.update_limits(sandbox.id, live_session.session.limits)
            step = "its network could not be prepared"
            await self._networks.prepare(live_session, sandbox)
            step = "its volumes could not be attached"
            if attach:
                await self._sessions.finish_removal(live_session.session.id)
                await self._volumes.give(sandbox.id, live_session.session)
        except Exception as error:
            why = error.message if isinstance(error, SandlotError) else repr(error)
            log.exception("cannot prepare a sandbox", session=live_session.session.id)
            await self._sessions.record_loss(live_session, sandbox, f"{step}: {why}")
        # Not in a finally block: a cancelled task must leave ``preparing`` set, to keep calls out.
        if live_session.preparing is asyncio.current_task():  # not a later sandbox's task
            live_session.preparing = None

    async def restore_limits(self, live_session: LiveSession, sandbox: Sandbox) -> None:
        """Set the limits again after a restart: the worker may have died before they were set."""
        recipe = self._recipes.get(live_session.session.environment)
        if recipe is None or live_session.session.limits == recipe.environment.limits:
            return
        if self._sandboxes.can_update(recipe.environment, live_session.session.limits):
            try:
                await self._sandboxes.update_limits(sandbox.id, live_session.session.limits)
            except Unsupported as error:
                # The recipe has changed since. The sandbox keeps the limits that it was made with.
                log.warning("limits not changed", session=live_session.session.id, error=error.message)
