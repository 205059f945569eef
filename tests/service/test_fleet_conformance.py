"""The service suite on a fleet of three workers: through a coordinator, and straight to the workers."""

from __future__ import annotations

import asyncio
import re
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import ClassVar

import pytest
import pytest_asyncio

from sandlot.client.async_client import AsyncClient
from sandlot.client.async_session import AsyncSession
from sandlot.domain.session import DEFAULT_ENVIRONMENT
from sandlot.domain.workspaces.workspace import StoreAbilities, StoreKind
from sandlot.testing.eventually import eventually
from sandlot.testing.service_suite import ServiceHarness, ServiceSuite
from sandlot.testing.service_suite.harness import deleted_afterwards, unique
from tests.fleet_faults.rig import Fleet
from tests.service.workers import CODED, coded_document, declare, engine_call

pytestmark = pytest.mark.docker
MAX_EXECS = 12
HEALTH_WITHIN_S = 2.0
COUNTED_WITHIN_S = 20.0  # by a loaded machine
UNDER_WAY = re.compile(r"^sandlot_calls_under_way (\S+)$", re.MULTILINE)


@asynccontextmanager
async def a_fleet() -> AsyncIterator[Fleet]:
    registry = Path(tempfile.mkdtemp(prefix="sandlot-test-"))
    declare(registry, [await coded_document()])
    settings = {"max_execs": str(MAX_EXECS), "allow_never": "true", "workspace_store": "volume"}
    fleet = Fleet(coordinators=0, registry_dir=str(registry), **settings)
    fleet.coordinators = [fleet.new_coordinator(registry_dir=str(registry))]
    try:
        await fleet.start()
        yield fleet
    finally:
        await fleet.clean()
        shutil.rmtree(registry, ignore_errors=True)


def harness(client: AsyncClient, stranger: AsyncClient) -> ServiceHarness:
    async def lose(session_id: str) -> None:
        await engine_call(client.service, "rm", session_id, "--force")

    return ServiceHarness(
        client,
        lose,
        MAX_EXECS,
        client.service,
        short_s=1.0,
        freeze=partial(engine_call, client.service, "pause"),
        thaw=partial(engine_call, client.service, "unpause"),
        stranger=stranger,
        abilities=StoreAbilities(StoreKind.VOLUME, snapshots=True),
        coded=CODED,
    )


class FleetSuite(ServiceSuite):
    """Of the whole contract one thing is otherwise: a coordinator asks how the fleet is at most once a second, and
    the calls that go straight are counted by the workers alone.
    """

    @pytest.fixture
    def takes_snapshots(self) -> None:
        pytest.skip("files do not move between workers, as these cases expect; tests/fleet has a fleet's own")

    fleet: ClassVar[Fleet]

    async def test_health(self, client: AsyncClient, session: AsyncSession) -> None:
        async def counted() -> bool:
            return (await client.health()).active_sessions >= 1

        await eventually(counted, COUNTED_WITHIN_S, "the session is counted")
        health = await client.health()
        assert health.ready
        assert health.worker_id
        assert health.version
        assert health.workers == 3
        assert DEFAULT_ENVIRONMENT in health.pools

    async def test_health_counts_sessions(self, client: AsyncClient) -> None:
        await asyncio.sleep(HEALTH_WITHIN_S)
        before = (await client.health()).active_sessions
        async with deleted_afterwards(client.thread(unique())):
            await eventually(partial(_has_sessions, client, before + 1), COUNTED_WITHIN_S, "one more")
        await eventually(partial(_has_sessions, client, before), COUNTED_WITHIN_S, "one less")

    async def test_health_counts_execs(self, client: AsyncClient, fresh: AsyncSession) -> None:
        async def idle() -> bool:
            return await self._under_way() == 0

        async def counted() -> bool:
            return await self._under_way() == 1

        await eventually(idle, COUNTED_WITHIN_S, "what earlier cases left has ended")
        # It ends when it was counted, and not before.
        running = asyncio.create_task(fresh.run("until [ -e go ]; do sleep 0.05; done", timeout_s=60))
        await eventually(counted, COUNTED_WITHIN_S, "the exec is counted")
        await fresh.files.write("go", "")
        assert (await running).ok
        await eventually(idle, COUNTED_WITHIN_S, "the exec is counted no more")

    async def _under_way(self) -> int:
        metrics = [await self.fleet.metrics(worker) for worker in self.fleet.workers]
        return sum(int(float(count)) for text in metrics for count in re.findall(UNDER_WAY, text))


async def _has_sessions(client: AsyncClient, count: int) -> bool:
    return (await client.health()).active_sessions == count


class TestFleetProxied(FleetSuite):
    @pytest_asyncio.fixture(loop_scope="session", scope="class")
    @classmethod
    async def service_harness(cls) -> AsyncIterator[ServiceHarness]:
        async with (
            a_fleet() as fleet,
            fleet.client(straight=False) as client,
            fleet.client(straight=False, key=await fleet.key_of("stranger")) as stranger,
        ):
            cls.fleet = fleet
            yield harness(client, stranger)
            carried, _ = await exec_calls(fleet)
            assert carried > 100


class TestFleetStraight(FleetSuite):
    @pytest_asyncio.fixture(loop_scope="session", scope="class")
    @classmethod
    async def service_harness(cls) -> AsyncIterator[ServiceHarness]:
        async with (
            a_fleet() as fleet,
            fleet.client() as client,
            fleet.client(key=await fleet.key_of("stranger")) as stranger,
        ):
            cls.fleet = fleet
            yield harness(client, stranger)
            # Otherwise the coordinator has carried the data, and nobody noticed.
            carried, served = await exec_calls(fleet)
            assert served > 100
            assert carried < served / 10


async def exec_calls(fleet: Fleet) -> tuple[int, int]:
    """Requests for execs, by their own figures: of the coordinator, of the workers together."""
    (coordinator,) = fleet.coordinators
    return (
        _execs(await fleet.metrics(coordinator)),
        sum([_execs(await fleet.metrics(worker)) for worker in fleet.workers]),
    )


def _execs(metrics: str) -> int:
    pattern = (
        r'^sandlot_http_requests_total\{method="POST",route="/v1/sessions/\{session_id\}/exec".*\} (\S+)$'
    )
    return sum(int(float(count)) for count in re.findall(pattern, metrics, re.MULTILINE))
