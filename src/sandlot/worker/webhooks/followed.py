"""``FollowedWebhooks``: the webhooks of a fleet on one of its workers.

Coordinators keep the list. Each worker follows it, and delivers what its own history records, with cursors of
its own. A background task asks for the list every second, so all workers apply a change within 5 seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import structlog

from sandlot.domain.background_tasks import BackgroundTasks
from sandlot.domain.callers.principal import Principal
from sandlot.domain.errors import SandlotError, Unsupported
from sandlot.domain.webhooks.shared import SharedWebhooks
from sandlot.domain.webhooks.webhook import DeadLetterPage, Progress, Redelivery, Webhook
from sandlot.worker.webhooks.webhooks import WorkerWebhooks

log = structlog.get_logger("sandlot.webhooks")

REFRESH_EVERY_S: Final = 1.0


class FollowedWebhooks:
    """Implements ``Webhooks``, for coordinators that ask how this worker is doing."""

    def __init__(self, webhooks: WorkerWebhooks, shared: SharedWebhooks) -> None:
        self._webhooks = webhooks
        self._shared = shared
        self._mark = ""
        self._failing = False  # whether that is logged already
        self._background = BackgroundTasks()

    def open(self) -> None:
        """Open the worker first."""
        self._background.start(self._follow(), "follow the fleet's webhooks")

    async def close(self) -> None:
        """Close the worker after this."""
        await self._background.cancel()

    async def refresh(self) -> None:
        """Serve the webhooks that the list has now."""
        found = await self._shared.current(self._mark)
        if found is not None:
            await self._webhooks.take(found.webhooks)
            self._mark = found.mark

    async def _follow(self) -> None:
        while True:
            try:
                await self.refresh()
                self._failing = False
            except SandlotError as error:
                if not self._failing:
                    log.warning("cannot read the fleet's webhooks; the known ones go on", error=error.message)
                self._failing = True
            except Exception:
                if not self._failing:
                    log.exception("cannot follow the fleet's webhooks; the known ones go on")
                self._failing = True
            await asyncio.sleep(REFRESH_EVERY_S)

    # --- for coordinators ---------------------------------------------------------------------

    async def create(self, caller: Principal, url: str, events: Sequence[str]) -> Webhook:
        raise _ask_a_coordinator()

    async def delete(self, caller: Principal, webhook_id: str) -> None:
        raise _ask_a_coordinator()

    async def list(self, caller: Principal) -> Sequence[tuple[Webhook, Progress]]:
        return await self._webhooks.list(caller)

    async def get(self, caller: Principal, webhook_id: str) -> tuple[Webhook, Progress]:
        return await self._webhooks.get(caller, webhook_id)

    async def dead_letters(
        self, caller: Principal, webhook_id: str, *, after: str | None, limit: int
    ) -> DeadLetterPage:
        return await self._webhooks.dead_letters(caller, webhook_id, after=after, limit=limit)

    async def redeliver(self, caller: Principal, webhook_id: str) -> Redelivery:
        return await self._webhooks.redeliver(caller, webhook_id)


def _ask_a_coordinator() -> Unsupported:
    return Unsupported("A fleet's coordinators create and delete its webhooks. Ask one of them.")
