"""Two tenants at one coordinator, their history and recordings, on workers that know them by the coordinator's tokens alone."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from sandlot.client.async_client import AsyncClient
from sandlot.domain.callers.principal import USER_SCOPES, Principal
from sandlot.domain.errors import NotFound
from sandlot.domain.session import DEFAULT_ENVIRONMENT
from sandlot.testing.fake.network.ports import Server
from sandlot.testing.service_suite import ServiceHarness
from sandlot.testing.service_suite.contexts.cells import CellCases
from sandlot.testing.service_suite.contexts.contexts import ContextCases, ForeignContextCases
from sandlot.testing.service_suite.history import HistoryCases
from sandlot.testing.service_suite.ports import PortCases
from sandlot.testing.service_suite.recordings import RecordingCases
from sandlot.testing.service_suite.tenants import TenantCases
from tests.fleet.fakes import two_workers

STRANGER = Principal("stranger", USER_SCOPES, key_id="k-stranger")


class AtOneCoordinator:
    @pytest_asyncio.fixture(loop_scope="session", scope="class")
    @classmethod
    async def service_harness(cls) -> AsyncIterator[ServiceHarness]:
        async with two_workers() as scene:

            async def lose(session_id: str) -> None:
                for worker in scene.workers.values():
                    try:
                        worker.lose(session_id)
                    except NotFound:
                        continue

            def serve_port(session_id: str, port: int, server: Server) -> None:
                owner = next(worker for worker in scene.workers.values() if session_id in worker._records)
                owner.serve_port(session_id, port, server)

            yield ServiceHarness(
                AsyncClient(service=scene.coordinator),
                lose,
                12,
                scene.coordinator,
                measures_memory=False,
                stranger=AsyncClient(service=scene.coordinator.acting_for(STRANGER)),
                serve_port=serve_port,
                coded=DEFAULT_ENVIRONMENT,
            )


class TestCoordinator(AtOneCoordinator, TenantCases):
    pass


class TestCoordinatorHistory(AtOneCoordinator, HistoryCases):
    pass


class TestCoordinatorCode(AtOneCoordinator, CellCases, ContextCases, ForeignContextCases):
    pass


class TestCoordinatorPorts(AtOneCoordinator, PortCases):
    pass


class TestCoordinatorRecordings(AtOneCoordinator, RecordingCases):
    pass
