"""Deletes the files that an attached workspace has replaced, once nobody waits.

Each create from a snapshot gives a warm sandbox another workspace. To delete the empty one that it had takes
longer than the swap itself.
"""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from sandlot.domain.errors import SandlotError
from sandlot.providers.docker.workspaces.btrfs.errors import store_errors
from sandlot.providers.docker.workspaces.btrfs.layout import Layout
from sandlot.providers.waiting import run_to_completion

log = structlog.get_logger("sandlot.workspaces")

# Not at once: the rest of the create would wait for the same disk.
DELETE_AFTER_S: Final = 0.5
RETRY_AFTER_S: Final = 30.0  # what could not be deleted is seldom gone a moment later


class OldFiles:
    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._task: asyncio.Task[None] | None = None

    def delete_soon(self) -> None:
        if self._layout.old_files and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._delete_later(), name="delete old files")

    async def stop(self) -> None:
        """Delete what is left, now."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._delete()

    async def _delete_later(self) -> None:
        pause = DELETE_AFTER_S
        while self._layout.old_files:
            await asyncio.sleep(pause)
            pause = DELETE_AFTER_S if await self._delete() else RETRY_AFTER_S

    async def _delete(self) -> bool:
        """Return False if that fails. The failure is logged, and what is left can be tried again."""
        try:
            with store_errors("delete old files"):
                await run_to_completion(asyncio.to_thread(self._layout.delete_old_files))
        except SandlotError as error:
            log.warning("cannot delete old files yet; will retry", error=error.message)
            return False
        return True
