"""Every alert of a fleet fires by a real fault and is over when the fault is. Each member has a key of its own."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from sandlot.testing.eventually import eventually
from tests.fleet_faults.rig import KEY, Fleet, running
from tests.observability.prometheus import PROMETHEUS, Prometheus, alerts_of

pytestmark = [
    pytest.mark.docker,
    pytest.mark.slow,
    pytest.mark.alone,
    pytest.mark.skipif(PROMETHEUS is None, reason="needs Prometheus: scripts/engine packages installs it"),
]

WORKER_KEY = "a-key-for-the-metrics-of-workers"


@pytest_asyncio.fixture
async def fleet() -> AsyncIterator[Fleet]:
    members = Fleet(workers=1, coordinators=1, api_key=WORKER_KEY, pool_size="0", min_pool_size="0")
    async with running(members) as fleet:
        yield fleet


async def test_every_alert_of_a_fleet_fires_and_is_over(fleet: Fleet) -> None:
    (worker,), (coordinator,) = fleet.workers, fleet.coordinators
    prometheus = Prometheus(
        {"sandlot-coordinators": (coordinator.url, KEY), "sandlot-workers": (worker.url, WORKER_KEY)}
    )
    try:
        await prometheus.start()

        async def all_are_up() -> bool:
            return await prometheus.value("up") == 2 and await prometheus.value("sandlot_ready") == 2

        await eventually(all_are_up, 30)
        await prometheus.settles()

        fleet.redis.signal(signal.SIGSTOP)
        try:
            await prometheus.fires("SandlotDirectoryUnavailable", "SandlotDirectorySlow")
        finally:
            fleet.redis.signal(signal.SIGCONT)
        await prometheus.clears("SandlotDirectoryUnavailable", "SandlotDirectorySlow")

        os.kill(worker.pid, signal.SIGSTOP)
        try:
            await prometheus.fires("SandlotWorkerMissing", "SandlotNotReady")
        finally:
            os.kill(worker.pid, signal.SIGCONT)
        await prometheus.settles()
        assert alerts_of("fleet.rules.yml") | {"SandlotNotReady"} <= prometheus.fired
    finally:
        await prometheus.clean()
