"""Provisions sessions: claims a sandbox, records it as the session's, and sets its variables."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

from sandlot.domain.environment import Recipe, proxy_port
from sandlot.domain.errors import LinkInterrupted, SandboxLost, StorageProblem, Unavailable
from sandlot.domain.network.variables import with_proxy
from sandlot.domain.recovery import Purpose, SandboxRecord
from sandlot.domain.session import Session
from sandlot.providers.base import Sandbox
from sandlot.worker.failpoints import Step, reached
from sandlot.worker.options import WorkerOptions
from sandlot.worker.pool.one_off import OneOffSandboxes
from sandlot.worker.pool.warm_pool import WarmPool
from sandlot.worker.refusals import environment_changed
from sandlot.worker.store.database import SessionRecord, Store
from sandlot.worker.store.sandboxes import Sandboxes
from sandlot.worker.store.transitions import Transitions
from sandlot.worker.upkeep.removals import Removals
from sandlot.worker.volumes.volumes import Volumes
from sandlot.worker.workspaces.workspaces import NEW_FILES, Source, Workspaces

# How many warm sandboxes may turn out to be dead before a create gives up.
MAX_DEAD_CLAIMS = 5
# Seconds that a warm sandbox has to accept its variables. After that it counts as dead.
BIND_WITHIN_S = 3.0


Report = Callable[[SessionRecord], Awaitable[None]]


class Provisioning:
    def __init__(
        self,
        store: Store,
        sandboxes: Sandboxes,
        pools: Mapping[str, WarmPool],
        one_off: OneOffSandboxes,
        options: WorkerOptions,
        removals: Removals,
        transitions: Transitions,
        variables: Callable[[SessionRecord], Mapping[str, str]],
        workspaces: Workspaces,
        volumes: Volumes,
    ) -> None:
        self._store = store
        self._sandboxes = sandboxes
        self._pools = pools
        self._one_off = one_off
        self._options = options
        self._removals = removals
        self._transitions = transitions
        self._variables = variables
        self._workspaces = workspaces
        self._volumes = volumes

    async def provision(
        self,
        record: SessionRecord,
        recipe: Recipe,
        assign: Callable[[Session, str], Session],
        *,
        previous: SessionRecord | None,
        report: Report | None = None,
        source: Source = NEW_FILES,
        with_volumes: bool = True,
    ) -> tuple[SessionRecord, Sandbox]:
        """Give the session a sandbox and return both.

        ``assign``: returns the session with the sandbox of a given id. ``previous``: the record
        until now, which is restored if no sandbox is available. ``report``: called while the
        sandbox is bound, because both take about as long. If it fails, the session is not created.
        ``source``: where its files come from; ``NotFound`` if they are gone. ``with_volumes``: whether the
        sandbox gets its session's volumes, too.

        A dead sandbox is replaced within the same request. The session is recorded before its
        sandbox is bound: a sandbox that carries a session's variables must never look like a warm
        one.
        """
        async with self._workspaces.giving(source) as given:
            return await self._provision(record, recipe, assign, previous, report, given, with_volumes)

    async def _provision(
        self,
        record: SessionRecord,
        recipe: Recipe,
        assign: Callable[[Session, str], Session],
        previous: SessionRecord | None,
        report: Report | None,
        source: Source,
        with_volumes: bool,
    ) -> tuple[SessionRecord, Sandbox]:
        for _ in range(MAX_DEAD_CLAIMS):
            sandbox = await self._claim(record.session, recipe, source)
            provisioned = replace(record, session=assign(record.session, sandbox.id))
            owned = SandboxRecord(sandbox.id, recipe.environment.name, Purpose.SESSION)
            self._sandboxes.track(owned)
            try:
                if with_volumes:
                    await self._volumes.give(sandbox.id, record.session)
                workspace = None
                if recipe.environment.keeps_files:
                    workspace = await self._workspaces.obtain(sandbox.id, source, recipe.environment.seed)
                provisioned = replace(provisioned, session=replace(provisioned.session, workspace=workspace))
                async with self._workspaces.attaching(sandbox.id, source, workspace):
                    # The thread may still be recorded for a session that has ended.
                    await self._transitions.save_pending()
                    await self._store.claim(provisioned, owned)
                    reached(Step.SESSION_RECORDED)
                    alive = await self._bind(sandbox, provisioned, report)
            except BaseException:
                await self.undo(provisioned, previous)
                raise
            if alive:
                reached(Step.SESSION_BOUND)
                return provisioned, sandbox
            self._pool(recipe).record_miss("warm_died")
            if source.workspace is None and not record.session.volumes:
                self._removals.start(sandbox.id)
            else:
                await self._sandboxes.try_remove(sandbox.id)  # the next one gets what it has
        await self._restore_record(record.session.id, previous)
        raise Unavailable(
            f"{MAX_DEAD_CLAIMS} sandboxes in a row died before they could be used. Run `sandlot "
            "doctor` on the worker's machine.",
            retry_after_s=5.0,
            details={"reason": "sandboxes_die"},
        )

    async def _bind(self, sandbox: Sandbox, record: SessionRecord, report: Report | None) -> bool:
        """Bind the sandbox and report the session; return whether the sandbox is alive."""
        if report is None:
            return await self._bind_env(sandbox, record)
        binding = asyncio.create_task(self._bind_env(sandbox, record))
        try:
            await report(record)  # sent before the binding task starts, because it takes longer
            return await binding
        except BaseException:
            binding.cancel()
            await asyncio.gather(binding, return_exceptions=True)
            raise

    async def _bind_env(self, sandbox: Sandbox, record: SessionRecord) -> bool:
        env = with_proxy(record.env, self._variables(record), proxy_port(sandbox.tier))
        try:
            async with asyncio.timeout(BIND_WITHIN_S):
                await sandbox.bind(env=env, max_execs=self._options.max_execs)
        except (SandboxLost, LinkInterrupted, TimeoutError):
            return False
        return True

    async def undo(self, provisioned: SessionRecord, previous: SessionRecord | None) -> None:
        """Remove the session's sandbox and restore its previous record."""
        assert provisioned.session.sandbox_id is not None
        self._removals.start(provisioned.session.sandbox_id)
        await self._restore_record(provisioned.session.id, previous)

    async def _restore_record(self, session_id: str, previous: SessionRecord | None) -> None:
        """Restore the record of a lost session, or delete the record of a new one."""
        with contextlib.suppress(StorageProblem):
            if previous is not None:
                await self._store.save([previous])
            else:
                await self._store.forget_session(session_id)

    async def _claim(self, session: Session, recipe: Recipe, source: Source) -> Sandbox:
        pool = self._pool(recipe)
        workspace_id = self._workspaces.sandbox_made_for(source)
        can_update = self._sandboxes.can_update(recipe.environment, session.limits)
        if can_update and workspace_id is None:
            return await pool.claim(session.tenant)
        # No warm sandbox can get these limits or these files, so one is made for this request.
        pool.record_miss("limits_fixed" if workspace_id is None else "files_fixed")
        environment = recipe.environment if can_update else replace(recipe.environment, limits=session.limits)
        return await self._one_off.claim(session.tenant, environment, workspace_id)

    def _pool(self, recipe: Recipe) -> WarmPool:
        """The pool of this very recipe: sandboxes of a later one would have another image or other limits."""
        pool = self._pools.get(recipe.environment.name)
        if pool is None or pool.recipe != recipe:
            raise environment_changed(recipe.environment.name)
        return pool
