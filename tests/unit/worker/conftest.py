"""Workers on a scripted engine, with a clock that ticks fast; whatever a test leaves open is closed."""

from __future__ import annotations

import resource
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.owned import OwnWorker
from tests.unit.worker.scripted import Engine

from sandlot.domain.callers.limits import AllowancesOf, no_allowances
from sandlot.domain.capacity.pool import PoolPolicy
from sandlot.domain.environment import Environment, Recipe
from sandlot.domain.policy.tenant_policies import TenantPolicies
from sandlot.domain.service import Catalogue
from sandlot.domain.session import OnIdle
from sandlot.worker.network.broker.brokers import Brokers
from sandlot.worker.options import WorkerOptions
from sandlot.worker.registrar import Registrar
from sandlot.worker.upkeep import reaper, startup
from sandlot.worker.webhooks.options import WebhookOptions
from sandlot.worker.workspaces.objects.storage import ObjectStorage
from sandlot.worker.workspaces.options import WorkspaceOptions

ENVIRONMENT = Environment(name="base", image="sandlot/base")


@pytest.fixture
def data_dir() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="sandlot-test-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    engine = Engine()
    yield engine
    engine.store.remove_folders()


class Scene:
    """``start`` begins a life of the worker on the same engine and the same memory."""

    def __init__(self, engine: Engine, data_dir: Path) -> None:
        self.engine = engine
        self.database = data_dir / "worker.db"
        self.lives: list[OwnWorker] = []

    def worker(
        self,
        *,
        environment: Environment = ENVIRONMENT,
        pool: PoolPolicy | None = None,
        recipe: dict[str, Any] | None = None,
        registrar: Registrar | None = None,
        allowances: AllowancesOf = no_allowances,
        webhooks: WebhookOptions | None = None,
        tenant_policies: TenantPolicies | None = None,
        brokers: Brokers | None = None,
        objects: ObjectStorage | None = None,
        **options: Any,
    ) -> OwnWorker:
        # Most tests are about sessions that end.
        options.setdefault("workspaces", WorkspaceOptions(on_idle=OnIdle.END))
        made = Recipe(environment, pool=pool or PoolPolicy(size=0, min=0), **(recipe or {}))
        worker = OwnWorker(
            self.engine.provider(),
            database=self.database,
            recipes={"base": made},
            catalogue=Catalogue(()),
            options=WorkerOptions(**options),
            registrar=registrar,
            allowances=allowances,
            webhooks=webhooks,
            tenant_policies=tenant_policies,
            brokers=brokers,
            objects=objects,
        )
        self.lives.append(worker)
        return worker

    async def start(self, **options: Any) -> OwnWorker:
        worker = self.worker(**options)
        await worker.open()
        return worker

    async def restart(self, worker: OwnWorker, **options: Any) -> OwnWorker:
        await worker.close()
        self.lives.remove(worker)
        return await self.start(**options)


@pytest.fixture
async def scene(engine: Engine, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    monkeypatch.setattr(reaper, "TICK_S", 0.02)
    monkeypatch.setattr(startup, "ADOPT_AGAIN_S", 0.05)
    scene = Scene(engine, data_dir)
    yield scene
    for worker in scene.lives:
        await worker.close()


@contextmanager
def full_disk() -> Iterator[None]:
    """No file of this process grows beyond what the store's has already: as a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (12 * 1024, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
