"""Extends the timeouts of sandboxes in use, and notices those that E2B has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final

import structlog

from sandlot.domain.errors import SandboxLost, SandlotError
from sandlot.providers.e2b.sandbox import E2BSandbox
from sandlot.providers.e2b.service import E2BService

log = structlog.get_logger("sandlot.e2b")

LOOK_EVERY_S: Final = 5.0
EXTENSIONS_PER_TIMEOUT: Final = 3  # so that two in a row may fail
EXTENDED_AT_ONCE: Final = 8


class Keeper:
    """``sandboxes``: those in use, by id. ``listed``: E2B's ids of the sandboxes that this owner has."""

    def __init__(
        self,
        service: E2BService,
        sandboxes: Mapping[str, E2BSandbox],
        listed: Callable[[], Awaitable[Collection[str]]],
        look_every_s: float = LOOK_EVERY_S,
    ) -> None:
        self._service = service
        self._sandboxes = sandboxes
        self._listed = listed
        self._look_every_s = look_every_s
        self._slots = asyncio.Semaphore(EXTENDED_AT_ONCE)

    async def run(self) -> None:
        extend_every_s = self._service.account.timeout_s / EXTENSIONS_PER_TIMEOUT
        loop = asyncio.get_running_loop()
        extended_at = loop.time()
        while True:
            await asyncio.sleep(min(self._look_every_s, extend_every_s))
            await self._look()
            if loop.time() - extended_at >= extend_every_s:
                extended_at = loop.time()
                await asyncio.gather(*(self._extend(sandbox) for sandbox in list(self._sandboxes.values())))

    async def _look(self) -> None:
        before = list(self._sandboxes.values())
        if not before:
            return
        try:
            there = await self._listed()
        except SandlotError as error:
            log.warning("cannot list the sandboxes at E2B; will retry", error=error.message)
            return
        except Exception:  # of the SDK: without this task, E2B would soon end every sandbox
            log.exception("cannot list the sandboxes at E2B, in an unknown way; will retry")
            return
        for sandbox in before:
            if sandbox.remote_id not in there:
                sandbox.mark_lost("E2B has ended the sandbox")

    async def _extend(self, sandbox: E2BSandbox) -> None:
        async with self._slots:
            try:
                await self._service.extend(sandbox.remote_id)
            except SandboxLost as error:
                sandbox.mark_lost(error.message)
            except SandlotError as error:
                log.warning("cannot extend a sandbox; will retry", sandbox=sandbox.id, error=error.message)
            except Exception:
                log.exception("cannot extend a sandbox, in an unknown way; will retry", sandbox=sandbox.id)
