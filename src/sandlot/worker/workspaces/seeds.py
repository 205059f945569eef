"""Seeds: the snapshots that an environment's new workspaces start from, instead of the image's files.

A seed is a snapshot that the environment names, or what its set-up script left. A script runs once for each
content of it and each image, when the first sandbox is made, however many ask for one. Its result is stored
first and recorded then, as other snapshots are. So a worker that dies in between runs the script again, and
the sweep deletes what nobody knows.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from sandlot.domain.environment import Environment, Recipe
from sandlot.domain.errors import EngineProblem, NotFound, StorageProblem, Unavailable, Unsupported
from sandlot.domain.history.positions import worker_tag
from sandlot.domain.ids import first_workspace_of, new_snapshot_id
from sandlot.domain.workspaces.setup import Setup
from sandlot.providers.base import Provider, Sandbox
from sandlot.worker.failpoints import Step, reached
from sandlot.worker.refusals import environment_changed, stopping
from sandlot.worker.store.sandboxes import Sandboxes
from sandlot.worker.workspaces.records import SeedRecord
from sandlot.worker.workspaces.setup_scripts import SetupScripts
from sandlot.worker.workspaces.workspaces import Workspaces

log = structlog.get_logger("sandlot.seeds")

# How many scripts run at once. Each has a sandbox beside those that sessions use.
SCRIPTS_AT_ONCE: Final = 2


@dataclass(frozen=True, slots=True)
class _Key:
    """What a result belongs to. Environments share none: the network of one may let more through."""

    environment: str
    setup: str
    image: str


class Seeds:
    """``recipes``: the worker's environments by name, as they are now."""

    def __init__(
        self,
        provider: Provider,
        sandboxes: Sandboxes,
        workspaces: Workspaces,
        scripts: SetupScripts,
        recipes: Callable[[], Mapping[str, Recipe]],
        worker_id: str,
    ) -> None:
        self._provider = provider
        self._sandboxes = sandboxes
        self._workspaces = workspaces
        self._store = workspaces.store
        self._records = workspaces.records
        self._scripts = scripts
        self._recipes = recipes
        self._tag = worker_tag(worker_id)
        self._running: dict[_Key, asyncio.Task[str]] = {}
        self._turns = asyncio.Semaphore(SCRIPTS_AT_ONCE)
        self._closed = False
        # Environments name these snapshots, so no retention deletes them.
        self._records.pinned = lambda: [
            recipe.environment.seed for recipe in recipes().values() if recipe.environment.seed is not None
        ]

    async def prepare(self, environment: Environment) -> None:
        """Run the environment's set-up script if that was not done. Call it without a slot for making
        sandboxes: it may take minutes.
        """
        await self._seed_of(environment)

    async def make(self, environment: Environment, workspace: str | None = None) -> Sandbox:
        """Make a sandbox whose workspace starts from the environment's seed, or is an existing one."""
        seed = None if workspace is not None else await self._seed_of(environment)
        try:
            return await self._sandboxes.make(environment, workspace, seed=seed)
        except NotFound as error:
            if seed is None or environment.setup is None or seed in (await self._store.list()).snapshots:
                raise
            await self._records.forget_seed(seed)
            raise EngineProblem(
                f"What the set-up script of environment {environment.name} left is gone from the disk. The "
                "script runs again at the next attempt.",
                retryable=True,
            ) from error

    async def _seed_of(self, environment: Environment) -> str | None:
        if environment.seed is None and environment.setup is None:
            return None
        if not self._workspaces.abilities.snapshots:
            what = "a seed" if environment.setup is None else "a set-up script"
            raise Unsupported(
                f"Environment {environment.name} has {what}, but this server cannot take snapshots. "
                f"{self._workspaces.abilities.note}"
            )
        if environment.setup is not None:
            return await self._result_of(environment, environment.setup)
        if environment.seed is None or not await self._records.has(environment.seed):
            raise NotFound(
                f"Environment {environment.name} starts from snapshot {environment.seed}, which this worker "
                "does not have. It was deleted, or belongs to another worker. Name another one in the "
                "environment's file and run `sandlot env reload`."
            )
        return environment.seed

    # --- set-up scripts -----------------------------------------------------------------------

    async def _result_of(self, environment: Environment, setup: Setup) -> str:
        key = _Key(environment.name, setup.digest, await self._provider.image_of(environment))
        found = await self._recorded(key)
        return found or await self._shared(key, environment, setup)

    async def _recorded(self, key: _Key) -> str | None:
        for seed in await self._records.seeds():
            if _key_of(seed) == key:
                return seed.snapshot
        return None

    async def _shared(self, key: _Key, environment: Environment, setup: Setup) -> str:
        """One run for all who ask. It goes on when they have left."""
        if self._closed:
            raise stopping()
        task = self._running.get(key)
        if task is None:
            task = asyncio.create_task(
                self._run(key, environment, setup), name=f"set up environment {environment.name}"
            )
            self._running[key] = task

            def finished(task: asyncio.Task[str]) -> None:
                del self._running[key]
                if not task.cancelled():
                    task.exception()  # retrieved, or asyncio warns if all callers have left

            task.add_done_callback(finished)
        await asyncio.wait({task})
        if task.cancelled():
            raise self._ended(environment)
        return task.result()

    def _ended(self, environment: Environment) -> Unavailable:
        return stopping() if self._closed else environment_changed(environment.name)

    async def _run(self, key: _Key, environment: Environment, setup: Setup) -> str:
        async with self._turns:
            if (found := await self._recorded(key)) is not None:
                return found
            log.info("running a set-up script", environment=environment.name)
            began = time.monotonic()
            async with self._scripts.sandbox_after(environment, setup) as sandbox:
                snapshot = await self._keep(key, first_workspace_of(sandbox.id))
            seconds = round(time.monotonic() - began, 1)
            log.info("set-up script done", environment=environment.name, seconds=seconds, snapshot=snapshot)
            return snapshot

    async def _keep(self, key: _Key, workspace: str) -> str:
        """Keep what a script left, in place of what the environment had."""
        earlier = [seed for seed in await self._records.seeds() if seed.environment == key.environment]
        snapshot = new_snapshot_id(self._tag)
        await self._store.snapshot(workspace, snapshot)
        reached(Step.SEED_STORED)
        try:
            await self._records.set_seed(SeedRecord(key.environment, key.setup, key.image, snapshot))
        except StorageProblem:
            await self._workspaces.try_delete(snapshot)
            raise
        reached(Step.SEED_RECORDED)
        for seed in earlier:
            await self._workspaces.try_delete(seed.snapshot)
        return snapshot

    async def sweep(self) -> None:
        """End scripts that no environment has any more, and delete what they left."""
        wanted = {
            (name, recipe.environment.setup.digest)
            for name, recipe in self._recipes().items()
            if recipe.environment.setup is not None
        }
        for key, task in list(self._running.items()):
            if (key.environment, key.setup) not in wanted:
                task.cancel()
        for seed in await self._records.seeds():
            if (seed.environment, seed.setup) not in wanted:
                await self._records.forget_seed(seed.snapshot)
                await self._workspaces.try_delete(seed.snapshot)

    async def close(self) -> None:
        """End scripts that run. The next start runs them again."""
        self._closed = True
        for task in (running := list(self._running.values())):
            task.cancel()
        if running:
            await asyncio.wait(running)


def _key_of(seed: SeedRecord) -> _Key:
    return _Key(seed.environment, seed.setup, seed.image)
