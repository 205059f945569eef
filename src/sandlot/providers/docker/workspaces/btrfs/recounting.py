"""Counts again what workspaces use, where what they are charged may be more.

Files that a workspace has deleted or replaced stay charged to it while a snapshot needs them, or count as
inherited. Only a walk through its files tells. So those that have used much of their quota are counted
again, once they have changed: rarely, and one at a time.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Final

import structlog

from sandlot.domain.errors import NotFound
from sandlot.providers.docker.workspaces.btrfs import trees
from sandlot.providers.docker.workspaces.btrfs.layout import Layout
from sandlot.providers.docker.workspaces.btrfs.quotas import Charge
from sandlot.providers.docker.workspaces.btrfs.reading import Reader
from sandlot.providers.docker.workspaces.btrfs.sizes import Sizes
from sandlot.providers.waiting import run_to_completion

log = structlog.get_logger("sandlot.workspaces")

PERIOD_S: Final = 5.0
# Below this share of the quota, what a workspace is charged too much cannot matter.
MUCH: Final = 0.5
# A workspace with many files is counted less often: counting takes at most one part in so many of the time.
COST: Final = 20


class Recounting:
    def __init__(self, layout: Layout, sizes: Sizes, reader: Reader) -> None:
        self._layout = layout
        self._sizes = sizes
        self._reader = reader
        self._counted: dict[str, tuple[int, float]] = {}  # what it was charged then, and when to count next
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._sizes.on and self._sizes.quota is not None and self._task is None:
            self._task = asyncio.create_task(self._run(), name="count what workspaces use")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(PERIOD_S)
            try:
                await run_to_completion(asyncio.to_thread(self.count_all))
            except OSError as error:
                log.warning("cannot read what workspaces use; will retry", error=str(error))

    def count_all(self) -> None:
        workspaces = self._layout.workspaces()
        self._counted = {name: entry for name, entry in self._counted.items() if name in workspaces}
        for workspace_id in workspaces:
            began = time.monotonic()
            try:
                path = self._reader.workspace(workspace_id)
                charge = self._sizes.charge(path)
                if charge is not None and self._is_due(workspace_id, charge):
                    self._count(workspace_id, path)
            except (NotFound, FileNotFoundError):
                continue  # it was deleted or renamed meanwhile
            except OSError as error:  # the others are counted all the same
                counted, _ = self._counted.get(workspace_id, (-1, 0.0))
                self._counted[workspace_id] = (counted, _due(began))
                log.warning("cannot count a workspace; will retry", workspace=workspace_id, error=str(error))

    def _is_due(self, workspace_id: str, charge: Charge) -> bool:
        assert self._sizes.quota is not None
        counted, due = self._counted.get(workspace_id, (-1, 0.0))
        # With a credit, space that a deleted snapshot freed would otherwise be had twice.
        matters = charge.used > self._sizes.quota * MUCH or charge.credit > 0
        return matters and charge.charged != counted and time.monotonic() >= due

    def _count(self, workspace_id: str, path: Path) -> None:
        """Count a short-lived snapshot: the sandbox could move files away from a walk through its own."""
        began = time.monotonic()
        with self._layout.staged() as staged:
            self._reader.copy_now(workspace_id, staged)
            charge = self._sizes.charge(path)
            size = trees.size_of(staged)
        if charge is not None:
            self._counted[workspace_id] = (charge.charged, _due(began))
            if size is not None:
                self._sizes.set_credit(path, charge.charged - size)


def _due(began: float) -> float:
    """When a workspace may be counted again whose count, or failed count, began then."""
    return began + COST * (time.monotonic() - began)
