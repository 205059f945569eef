"""Makes and removes sandboxes and keeps their records, from before creation until after removal."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Container, Mapping

import structlog

from sandlot.domain.capacity.limits import Limits
from sandlot.domain.environment import Environment, proxy_port
from sandlot.domain.errors import SandlotError, StorageProblem
from sandlot.domain.ids import first_workspace_of, new_sandbox_id
from sandlot.domain.network.variables import local_address
from sandlot.domain.recovery import Purpose, SandboxRecord, sweep
from sandlot.providers.base import PortListener, Provider, Sandbox, SandboxSpec
from sandlot.worker.failpoints import Step, reached
from sandlot.worker.store.database import Store

log = structlog.get_logger("sandlot.sandboxes")


class Sandboxes:
    """``concurrency`` limits how many sandboxes are made at once, over all environments.

    ``keep``: the workspaces that stay when their sandboxes are removed.
    """

    def __init__(
        self,
        provider: Provider,
        store: Store,
        *,
        concurrency: int,
        orphan_grace_s: float,
        keep: Container[str] = (),
    ) -> None:
        self._keep = keep
        self._provider = provider
        self._store = store
        self._grace_s = orphan_grace_s
        self._making = asyncio.Semaphore(concurrency)
        self._known: dict[str, SandboxRecord] = {}
        self._listeners: dict[str, PortListener] = {}  # of sandboxes that no session has yet
        self._pending_removals: set[str] = set()
        self._seen_unknown: frozenset[str] = frozenset()

    def track(self, record: SandboxRecord) -> None:
        """Remember a sandbox that an earlier process recorded, or one whose purpose changes."""
        self._known[record.id] = record

    @property
    def slots(self) -> asyncio.Semaphore:
        """Callers must hold one slot while they make a sandbox."""
        return self._making

    def can_update(self, environment: Environment, limits: Limits) -> bool:
        return self._provider.can_update(environment, limits)

    async def update_limits(self, sandbox_id: str, limits: Limits) -> None:
        await self._provider.update_limits(sandbox_id, limits)

    async def adopt(self, sandbox_id: str) -> Sandbox:
        return await self._provider.adopt(sandbox_id)

    async def make(
        self, environment: Environment, workspace: str | None = None, *, seed: str | None = None
    ) -> Sandbox:
        """``workspace``: an existing one that the sandbox is made with. ``seed``: without one, the snapshot
        that its own begins with.
        """
        record = SandboxRecord(new_sandbox_id(), environment.name, Purpose.WARM)
        self._known[record.id] = record
        try:
            await self._store.add_sandbox(record)
            reached(Step.SANDBOX_RECORDED)
            if workspace is None and seed is not None:
                sandbox = await self._make_seeded(record.id, environment, seed)
            else:
                sandbox = await self._provider.create(
                    SandboxSpec(record.id, environment, workspace=workspace)
                )
            reached(Step.SANDBOX_MADE)
            # Now, so that a session that gets the sandbox does not wait for it.
            self._listeners[record.id] = await sandbox.listen(local_address(proxy_port(sandbox.tier)))
            return sandbox
        except BaseException:
            # The engine may have made it all the same; then the sweep finds and removes it.
            self._pending_removals.add(record.id)
            raise

    async def _make_seeded(self, sandbox_id: str, environment: Environment, seed: str) -> Sandbox:
        """The clone has the id of the sandbox's first workspace, so a session takes it as any other."""
        workspaces, clone = self._provider.workspaces, first_workspace_of(sandbox_id)
        try:
            await workspaces.clone(seed, clone)
            reached(Step.SEED_CLONED)
            return await self._provider.create(SandboxSpec(sandbox_id, environment, workspace=clone))
        except BaseException:
            # A provider keeps a workspace that it did not make. If this fails too, the sweep deletes it.
            with contextlib.suppress(SandlotError):
                await asyncio.shield(workspaces.delete(clone))
            raise

    def take_listener(self, sandbox_id: str) -> PortListener:
        """The listener for the proxy in a sandbox that this process has made. Whoever takes it serves it."""
        return self._listeners.pop(sandbox_id)

    def mark_for_removal(self, sandbox_id: str) -> None:
        """Make sure that the sweep removes the sandbox if the caller does not."""
        self._pending_removals.add(sandbox_id)

    async def discard(self, sandbox: Sandbox) -> None:
        await self.try_remove(sandbox.id)

    async def remove(self, sandbox_id: str) -> None:
        """Remove a sandbox.

        It is gone when this returns. If the engine fails, the sweep tries again.
        """
        self._pending_removals.add(sandbox_id)
        try:
            await self._provider.destroy(sandbox_id, keep=self._keep)
        except SandlotError as error:
            log.warning("cannot remove a sandbox; will retry", sandbox=sandbox_id, error=error.message)
            raise
        reached(Step.SANDBOX_REMOVED)
        self._pending_removals.discard(sandbox_id)
        self._known.pop(sandbox_id, None)
        self._listeners.pop(sandbox_id, None)
        with contextlib.suppress(StorageProblem):  # then the next start removes it again
            await self._store.forget_sandbox(sandbox_id)

    async def try_remove(self, sandbox_id: str) -> bool:
        """Remove a sandbox; return False instead of raising if that fails. The failure is logged,
        and the sweep tries again.
        """
        try:
            await self.remove(sandbox_id)
        except SandlotError:
            return False
        except Exception:
            log.exception("cannot remove a sandbox", sandbox=sandbox_id)
            return False
        return True

    @property
    def first_workspaces(self) -> set[str]:
        """The workspaces that the sandboxes were made with."""
        return {first_workspace_of(sandbox_id) for sandbox_id in self._known}

    async def engine_states(self) -> Mapping[str, str]:
        """The state of each sandbox according to the engine, by id."""
        return {sandbox.id: sandbox.state for sandbox in await self._provider.list()}

    async def sweep(self, now: float) -> int:
        """Finish failed removals, and remove unknown sandboxes that were seen twice.

        Returns how many unknown ones it removed.
        """
        unfinished = list(self._pending_removals)
        found = {sandbox.id: sandbox.created_at for sandbox in await self._provider.list()}
        unknown = {name: made_at for name, made_at in found.items() if name not in self._known}
        remove, self._seen_unknown = sweep(unknown, self._seen_unknown, now, self._grace_s)
        for sandbox_id in remove:
            log.warning("removing a sandbox that belongs to no session", sandbox=sandbox_id)
        await asyncio.gather(*(self.try_remove(name) for name in (*unfinished, *remove)))
        return len(remove)
