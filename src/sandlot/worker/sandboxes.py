"""Sandboxes with their records: every one is on record before it is made and until it is gone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping

import structlog

from sandlot.domain.environment import Environment
from sandlot.domain.errors import SandlotError, StorageProblem
from sandlot.domain.ids import new_sandbox_id
from sandlot.domain.limits import Limits
from sandlot.domain.recovery import Purpose, SandboxRecord, sweep
from sandlot.providers.base import Provider, Sandbox, SandboxSpec
from sandlot.worker.failpoints import Step, reached
from sandlot.worker.store import Store

log = structlog.get_logger("sandlot.sandboxes")


class Sandboxes:
    """``concurrency`` bounds how many are made at once, over all environments."""

    def __init__(self, provider: Provider, store: Store, *, concurrency: int, orphan_grace_s: float) -> None:
        self._provider = provider
        self._store = store
        self._grace_s = orphan_grace_s
        self._making = asyncio.Semaphore(concurrency)
        self._known: dict[str, SandboxRecord] = {}
        self._unremoved: set[str] = set()
        self._seen_unknown: frozenset[str] = frozenset()

    def know(self, record: SandboxRecord) -> None:
        """On record from an earlier life, or changing what it is for."""
        self._known[record.id] = record

    @property
    def slots(self) -> asyncio.Semaphore:
        """One is to be held while a sandbox is made."""
        return self._making

    def can_update(self, environment: Environment, limits: Limits) -> bool:
        return self._provider.can_update(environment, limits)

    async def update_limits(self, sandbox_id: str, limits: Limits) -> None:
        await self._provider.update_limits(sandbox_id, limits)

    async def adopt(self, sandbox_id: str) -> Sandbox:
        return await self._provider.adopt(sandbox_id)

    async def make(self, environment: Environment) -> Sandbox:
        record = SandboxRecord(new_sandbox_id(), environment.name, Purpose.WARM)
        self._known[record.id] = record
        try:
            await self._store.add_sandbox(record)
            reached(Step.SANDBOX_RECORDED)
            sandbox = await self._provider.create(SandboxSpec(id=record.id, environment=environment))
            reached(Step.SANDBOX_MADE)
            return sandbox
        except BaseException:
            # What the engine may have made after all is found by the sweep.
            self._unremoved.add(record.id)
            raise

    def doom(self, sandbox_id: str) -> None:
        """To be removed, if not by whoever asked for it, then by the sweep."""
        self._unremoved.add(sandbox_id)

    async def discard(self, sandbox: Sandbox) -> None:
        await self.remove_later(sandbox.id)

    async def remove(self, sandbox_id: str) -> None:
        """Gone when it returns. If the engine fails, the sweep goes on with it."""
        self._unremoved.add(sandbox_id)
        try:
            await self._provider.destroy(sandbox_id)
        except SandlotError as error:
            log.warning(
                "sandbox could not be removed; to be tried again", sandbox=sandbox_id, error=error.message
            )
            raise
        reached(Step.SANDBOX_REMOVED)
        self._unremoved.discard(sandbox_id)
        self._known.pop(sandbox_id, None)
        with contextlib.suppress(StorageProblem):  # the next start removes once more what is not there
            await self._store.forget_sandbox(sandbox_id)

    async def remove_later(self, sandbox_id: str) -> bool:
        """As ``remove``, for those who need not know why it failed: that is told, and the sweep goes on with
        it.
        """
        try:
            await self.remove(sandbox_id)
        except SandlotError:
            return False
        except Exception:
            log.exception("sandbox could not be removed", sandbox=sandbox_id)
            return False
        return True

    async def found(self) -> Mapping[str, str]:
        """The engine's view: id to state."""
        return {sandbox.id: sandbox.state for sandbox in await self._provider.list()}

    async def sweep(self, now: float) -> int:
        """Finishes removals that failed, and removes what nobody knows once it was seen twice; how many."""
        unfinished = list(self._unremoved)
        found = {sandbox.id: sandbox.created_at for sandbox in await self._provider.list()}
        unknown = {name: made_at for name, made_at in found.items() if name not in self._known}
        remove, self._seen_unknown = sweep(unknown, self._seen_unknown, now, self._grace_s)
        for sandbox_id in remove:
            log.warning("removing a sandbox that nobody knows", sandbox=sandbox_id)
        await asyncio.gather(*(self.remove_later(name) for name in (*unfinished, *remove)))
        return len(remove)
