"""The environments of a worker and their pools, which can be replaced while the worker serves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping

from sandlot.domain.environment import EnvironmentChanges, Recipe, environment_changes
from sandlot.worker.pool.warm_pool import WarmPool
from sandlot.worker.refusals import environment_changed


class Environments:
    """``recipes`` and ``pools`` are the worker's only ones, by name: its other parts see every change.

    An environment that stays as it is keeps its pool, with its sandboxes and figures.
    """

    def __init__(self, recipes: Mapping[str, Recipe], new_pool: Callable[[Recipe], WarmPool]) -> None:
        self._new_pool = new_pool
        self.recipes = dict(recipes)
        self.pools = {name: new_pool(recipe) for name, recipe in recipes.items()}
        self._retiring: set[asyncio.Task[None]] = set()

    def change(
        self, recipes: Mapping[str, Recipe], rebuilt_images: Collection[str] = ()
    ) -> EnvironmentChanges:
        """Without waiting, so that nobody sees a recipe without its pool.

        The old pools remove their warm sandboxes in the background. Sandboxes of sessions stay.
        """
        changes = environment_changes(self.recipes, recipes, rebuilt_images)
        for name in (*changes.changed, *changes.removed):
            self._retire(self.pools.pop(name), name)
        self.recipes.clear()
        self.recipes.update(recipes)
        for name in (*changes.added, *changes.changed):
            self.pools[name] = self._new_pool(recipes[name])
            self.pools[name].fill()
        return changes

    def _retire(self, pool: WarmPool, name: str) -> None:
        task = asyncio.create_task(pool.close(environment_changed(name)), name=f"retire the pool of {name}")
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)

    async def close(self) -> None:
        """Remove all warm sandboxes. Every pool closes even if another one fails."""
        closing = [*(pool.close() for pool in self.pools.values()), *self._retiring]
        for failure in await asyncio.gather(*closing, return_exceptions=True):
            if isinstance(failure, BaseException):
                raise failure
