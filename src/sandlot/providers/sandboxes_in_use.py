"""The sandboxes that a provider has in use, and the creates, adoptions and removals under way.

What differs from provider to provider is how a sandbox is made, found again and removed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Coroutine
from typing import Any, Generic, Protocol, TypeVar

import structlog

from sandlot.domain.errors import SandboxLost, SandlotError
from sandlot.providers.host_errors import host_errors
from sandlot.providers.removals import Removals, Remove
from sandlot.providers.waiting import run_to_completion, wait_shared

log = structlog.get_logger("sandlot.host")


class _Sandbox(Protocol):
    @property
    def id(self) -> str: ...

    def mark_lost(self, reason: str) -> None: ...

    async def close(self) -> None: ...


S = TypeVar("S", bound=_Sandbox)


class SandboxesInUse(Generic[S]):
    """``remove`` removes every part of a sandbox, as in ``Removals``."""

    def __init__(self, remove: Remove) -> None:
        self.by_id: dict[str, S] = {}
        self._being_created: set[str] = set()
        self._pending_creates: set[asyncio.Future[None]] = set()
        self._adoptions: dict[str, asyncio.Task[S]] = {}
        self._removals = Removals(self._release, remove, self._being_created)

    @contextlib.asynccontextmanager
    async def creating(self, sandbox_id: str) -> AsyncIterator[None]:
        """A create. ``close`` waits for it, and a removal beside it repeats until nothing is left."""
        finished = asyncio.get_running_loop().create_future()
        self._pending_creates.add(finished)
        self._being_created.add(sandbox_id)
        try:
            with host_errors(f"make sandbox {sandbox_id}"):
                yield
        finally:
            self._being_created.discard(sandbox_id)
            self._pending_creates.discard(finished)
            finished.set_result(None)

    @contextlib.asynccontextmanager
    async def removed_on_failure(self, sandbox_id: str, keep: Container[str] = ()) -> AsyncIterator[None]:
        """The part of a create that makes something. If it fails, all that it made is removed."""
        try:
            yield
        except BaseException:
            self._being_created.discard(sandbox_id)  # this create makes nothing more
            await _clean_up(self._undo(sandbox_id, keep))
            raise

    async def _undo(self, sandbox_id: str, keep: Container[str]) -> None:
        # A removal that began during the create may have missed some parts: start a new one.
        await self._removals.wait(sandbox_id)
        await self._removals.destroy(sandbox_id, keep)

    async def adopt(self, sandbox_id: str, take_over: Callable[[str], Awaitable[S]]) -> S:
        """Returns the sandbox. However many callers ask, it is taken over once."""
        task = self._adoptions.get(sandbox_id)
        if task is None:
            if (existing := self.by_id.get(sandbox_id)) is not None:
                return existing
            task = asyncio.create_task(_taken_over(sandbox_id, take_over), name=f"adopt {sandbox_id}")
            self._adoptions[sandbox_id] = task
            task.add_done_callback(lambda _: self._adoptions.pop(sandbox_id, None))
        # Shared and shielded: two listeners for one sandbox would compete for its agent.
        return await wait_shared(task)

    @contextlib.asynccontextmanager
    async def entering(self, sandbox: S) -> AsyncIterator[None]:
        """The part of an adoption in which the sandbox is in use already. A failure releases it."""
        if sandbox.id in self._removals:
            raise SandboxLost("the sandbox is being destroyed")
        self.by_id[sandbox.id] = sandbox
        try:
            yield
        except BaseException:
            if self.by_id.get(sandbox.id) is sandbox:
                del self.by_id[sandbox.id]
            await _clean_up(sandbox.close())
            raise

    async def destroy(self, sandbox_id: str, keep: Container[str] = ()) -> None:
        await self._removals.destroy(sandbox_id, keep)

    async def _release(self, sandbox_id: str) -> None:
        if (sandbox := self.by_id.pop(sandbox_id, None)) is not None:
            sandbox.mark_lost("the sandbox was destroyed")
            await sandbox.close()

    async def close(self) -> None:
        """Releases all sandboxes, which keep running. Unfinished creates fail."""
        for adoption in self._adoptions.values():
            adoption.cancel()
        while True:
            released = list(self.by_id.values())
            self.by_id.clear()  # the watchers look at this one
            await asyncio.gather(*(sandbox.close() for sandbox in released))
            # Wait while everything else is still open: a create that fails removes what it made.
            under_way: set[asyncio.Future[Any]] = {*self._pending_creates, *self._adoptions.values()}
            under_way |= self._removals.under_way
            if under_way:
                await asyncio.wait(under_way)
            elif not self.by_id:
                break


async def _taken_over(sandbox_id: str, take_over: Callable[[str], Awaitable[S]]) -> S:
    with host_errors(f"take over sandbox {sandbox_id}"):
        return await take_over(sandbox_id)


async def _clean_up(work: Coroutine[Any, Any, None]) -> None:
    """Runs cleanup work to its end, even if the caller is cancelled again.

    Its own errors do not hide the original error. What is left, the worker's next sweep removes.
    """
    try:
        await run_to_completion(work)
    except SandlotError as error:
        log.warning("cannot clean up after a failure; the next sweep will", error=error.message)
    except Exception:
        log.exception("cannot clean up after a failure; the next sweep will")
