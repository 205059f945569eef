"""How far this worker is with each environment: from its pools, and from the provider for unused ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from sandlot.domain.capacity.readiness import Readiness, ReadinessState
from sandlot.domain.errors import ImageMissing, SandlotError
from sandlot.domain.service import Catalogue
from sandlot.providers.base import Provider
from sandlot.worker.pool.warm_pool import WarmPool

# Seconds between two looks for the images of environments that nobody uses. Each is one call to the engine.
LOOK_EVERY_S = 5.0


class EnvironmentReadiness:
    """``pools`` are the worker's, by environment; they may be replaced while it serves."""

    def __init__(
        self,
        provider: Provider,
        pools: Mapping[str, WarmPool],
        worker_id: str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._provider = provider
        self._pools = pools
        self._worker_id = worker_id
        self._clock = clock
        # By image, as of the last look; environments share images.
        self._images: dict[str, tuple[ReadinessState, str]] = {}
        self._last: dict[str, Readiness] = {}

    async def look(self) -> None:
        """Ask the provider for the images that no sandbox was made from, and for those that were missing.

        The pools know about the others. A pool that nobody uses does not try again by itself, so it
        would never learn that its image was built meanwhile.
        """
        found: dict[str, tuple[ReadinessState, str]] = {}
        for pool in list(self._pools.values()):
            image = pool.recipe.environment.image
            if image not in found and (pool.readiness is None or _misses_its_image(pool)):
                found[image] = await self._look_for(pool)
        self._images = found
        self.now()

    async def _look_for(self, pool: WarmPool) -> tuple[ReadinessState, str]:
        try:
            there = await self._provider.check_image(pool.recipe.environment)
        except ImageMissing as error:
            return ReadinessState.MISSING, error.message
        except SandlotError as error:
            return ReadinessState.UNKNOWN, error.message
        return ReadinessState.READY if there else ReadinessState.UNKNOWN, ""

    def now(self) -> Mapping[str, Readiness]:
        """By environment. Never waits."""
        self._last = {name: self._of(name, pool) for name, pool in self._pools.items()}
        return self._last

    def _of(self, name: str, pool: WarmPool) -> Readiness:
        looked = self._images.get(pool.recipe.environment.image, (ReadinessState.UNKNOWN, ""))
        built_since = _misses_its_image(pool) and looked[0] is ReadinessState.READY
        state, reason = looked if pool.readiness is None or built_since else pool.readiness
        before = self._last.get(name)
        since = before.since if before is not None and before.state is state else round(self._clock(), 3)
        return Readiness(self._worker_id, state, reason, since, pool.ready)

    def on(self, catalogue: Catalogue) -> Catalogue:
        """The catalogue, with what is known of its environments now."""
        known = self.now()
        return replace(
            catalogue,
            environments=tuple(
                replace(each, readiness=(known[each.name],)) if each.name in known else each
                for each in catalogue.environments
            ),
        )


def _misses_its_image(pool: WarmPool) -> bool:
    return pool.readiness is not None and pool.readiness[0] is ReadinessState.MISSING
