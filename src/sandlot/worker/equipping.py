"""How a session comes by its sandbox: claimed, on record as its own, and with its variables in it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

from sandlot.domain.environment import Recipe
from sandlot.domain.errors import LinkInterrupted, SandboxLost, StorageProblem, Unavailable
from sandlot.domain.recovery import Purpose, SandboxRecord
from sandlot.domain.session import Session
from sandlot.providers.base import Sandbox
from sandlot.worker.failpoints import Step, reached
from sandlot.worker.options import WorkerOptions
from sandlot.worker.orders import Orders
from sandlot.worker.pool import Pool
from sandlot.worker.removals import Removals
from sandlot.worker.sandboxes import Sandboxes
from sandlot.worker.store import SessionRecord, Store
from sandlot.worker.transitions import Transitions

# Warm sandboxes that may turn out dead within one create before it gives up.
MAX_DEAD_CLAIMS = 5
# Seconds in which a warm sandbox takes its variables; one that does not is as good as dead.
BIND_WITHIN_S = 3.0


Tell = Callable[[SessionRecord], Awaitable[None]]


class Equipping:
    def __init__(
        self,
        store: Store,
        sandboxes: Sandboxes,
        pools: Mapping[str, Pool],
        orders: Orders,
        options: WorkerOptions,
        removals: Removals,
        transitions: Transitions,
    ) -> None:
        self._store = store
        self._sandboxes = sandboxes
        self._pools = pools
        self._orders = orders
        self._options = options
        self._removals = removals
        self._transitions = transitions

    async def equip(
        self,
        record: SessionRecord,
        recipe: Recipe,
        given: Callable[[Session, str], Session],
        *,
        before: SessionRecord | None,
        tell: Tell | None = None,
    ) -> tuple[SessionRecord, Sandbox]:
        """``given``: the session once it has the sandbox of this id. ``before``: what was on record until
        now, and is again if no sandbox is to be had. ``tell``: whom it is told to while it is bound,
        which takes as long; if that fails, there is no session.

        One that turns out dead is replaced within the same request. Recorded before it is bound: a warm
        sandbox that carries somebody's variables must never look like a warm one.
        """
        for _ in range(MAX_DEAD_CLAIMS):
            sandbox = await self._claim(record.session, recipe)
            equipped = replace(record, session=given(record.session, sandbox.id))
            owned = SandboxRecord(sandbox.id, recipe.environment.name, Purpose.SESSION)
            self._sandboxes.know(owned)
            try:
                # The thread may still be on record as that of a session which ended.
                await self._transitions.save_late()
                await self._store.claim(equipped, owned)
                reached(Step.SESSION_RECORDED)
                alive = await self._bind(sandbox, equipped, tell)
            except BaseException:
                await self.undo(equipped, before)
                raise
            if alive:
                reached(Step.SESSION_BOUND)
                return equipped, sandbox
            self._pools[recipe.environment.name].missed("warm_died")
            self._removals.begin(sandbox.id)
        await self._unrecord(record.session.id, before)
        raise Unavailable(
            f"{MAX_DEAD_CLAIMS} sandboxes in a row died before they could be used; see `sandlot doctor`",
            retry_after_s=5.0,
            details={"reason": "sandboxes_die"},
        )

    async def _bind(self, sandbox: Sandbox, record: SessionRecord, tell: Tell | None) -> bool:
        """Whether the sandbox is alive."""
        if tell is None:
            return await self._takes(sandbox, record.env)
        binding = asyncio.create_task(self._takes(sandbox, record.env))
        try:
            await tell(record)  # on its way before the other begins, because it takes longer
            return await binding
        except BaseException:
            binding.cancel()
            await asyncio.gather(binding, return_exceptions=True)
            raise

    async def _takes(self, sandbox: Sandbox, env: Mapping[str, str]) -> bool:
        try:
            async with asyncio.timeout(BIND_WITHIN_S):
                await sandbox.bind(env=env, max_execs=self._options.max_execs)
        except (SandboxLost, LinkInterrupted, TimeoutError):
            return False
        return True

    async def undo(self, equipped: SessionRecord, before: SessionRecord | None) -> None:
        """Its sandbox goes, and it is as it was on record before."""
        assert equipped.session.sandbox_id is not None
        self._removals.begin(equipped.session.sandbox_id)
        await self._unrecord(equipped.session.id, before)

    async def _unrecord(self, session_id: str, before: SessionRecord | None) -> None:
        """A lost session as it was, or one that never was."""
        with contextlib.suppress(StorageProblem):
            if before is not None:
                await self._store.save([before])
            else:
                await self._store.forget_session(session_id)

    async def _claim(self, session: Session, recipe: Recipe) -> Sandbox:
        pool = self._pools[recipe.environment.name]
        if self._sandboxes.can_update(recipe.environment, session.limits):
            return await pool.claim(session.tenant)
        # These limits are fixed when a sandbox is made: it is made for this request.
        pool.missed("limits_fixed")
        return await self._orders.claim(session.tenant, replace(recipe.environment, limits=session.limits))
