"""Every alert of a server fires by a real fault and is over when the fault is."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from sandlot import AsyncClient, AsyncSession
from sandlot.domain.errors import SandlotError
from sandlot.testing.eventually import eventually
from tests.faults.rig import ServerProcess, created_at_last
from tests.faults.valve import Valve
from tests.observability.prometheus import PROMETHEUS, Prometheus, alerts_of

pytestmark = [
    pytest.mark.docker,
    pytest.mark.slow,
    pytest.mark.alone,
    pytest.mark.skipif(PROMETHEUS is None, reason="needs Prometheus: scripts/engine packages installs it"),
]

KEY = "a-key-for-the-tests-alone"
MAX_SESSIONS = 3
DISK_MIB = 64


class Watched:
    """A server behind a valve, on a small disk, and the Prometheus that watches it."""

    def __init__(self, registry: Path, logs: Path) -> None:
        self.valve = Valve()
        self.server = ServerProcess(
            api_key=KEY,
            through=self.valve.host,
            registry=registry,
            max_sessions=str(MAX_SESSIONS),
            pool_size="1",
            min_pool_size="1",
            max_pool_size="1",
            exec_grace_s="1",
            queue_timeout_s="20",
            on_idle="end",
            min_free_bytes=str(2 * 1024 * 1024),
        )
        self.server.log = logs / "server.log"  # a full disk must not stop the log
        self.prometheus = Prometheus({"sandlot": (self.server.url, KEY)})
        self._filler = self.server.data_dir / "filler"

    async def start(self) -> None:
        folder = str(self.server.data_dir)
        size = f"size={DISK_MIB}m,mode=0700"
        subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", folder], check=True)
        await self.valve.open()
        await self.server.start()
        await self.prometheus.start()

    def fill_disk(self) -> None:
        with contextlib.suppress(OSError), self._filler.open("wb", buffering=0) as filler:
            for _ in range(DISK_MIB * 1024):
                filler.write(b"x" * 1024)

    def make_room(self) -> None:
        self._filler.unlink()

    async def clean(self) -> None:
        await self.prometheus.clean()
        await self.server.clean()
        subprocess.run(["umount", "-l", str(self.server.data_dir)], check=False)
        with contextlib.suppress(OSError):
            self.server.data_dir.rmdir()
        await self.valve.clean()


@pytest_asyncio.fixture
async def watched(slim_registry: Path, tmp_path: Path) -> AsyncIterator[Watched]:
    watched = Watched(slim_registry, tmp_path)
    try:
        await watched.start()
        yield watched
    finally:
        await watched.clean()


async def test_every_alert_fires_and_is_over(watched: Watched) -> None:
    prometheus, server = watched.prometheus, watched.server
    async with server.client() as client:
        session = await created_at_last(client)
        await session.run("true")
        await eventually(lambda: _scraped(prometheus), 30)
        await prometheus.settles()

        await _lose_a_sandbox(watched, client)
        await _hang_a_sandbox(watched, client)
        await _fill_the_machine(watched, client)
        await _slow_the_engine(watched, client)
        await _cut_off_the_engine(watched, client, kept=session)
        await _fill_the_disk(watched, session)
    os.kill(server.pid, signal.SIGSTOP)
    try:
        await prometheus.fires("SandlotDown")
    finally:
        os.kill(server.pid, signal.SIGCONT)
    await prometheus.settles()
    assert prometheus.fired | {"SandlotNotReady"} == alerts_of("server.rules.yml")  # the fleet's test has it


async def _scraped(prometheus: Prometheus) -> bool:
    return await prometheus.value('sandlot_execs_total{verdict="ok"}') == 1


async def _lose_a_sandbox(watched: Watched, client: AsyncClient) -> None:
    session = await created_at_last(client)
    watched.server.docker("kill", watched.server.container_of(session))
    await watched.prometheus.fires("SandlotSandboxesLost")
    await session.delete()


async def _hang_a_sandbox(watched: Watched, client: AsyncClient) -> None:
    session = await created_at_last(client)
    container = watched.server.container_of(session)
    watched.server.docker("pause", container)
    try:
        with contextlib.suppress(SandlotError):
            await session.run("true", timeout_s=1)
        await watched.prometheus.fires("SandlotSandboxesUnresponsive")
    finally:
        watched.server.docker("unpause", container)
    await watched.prometheus.clears("SandlotSandboxesUnresponsive")
    await session.delete()


async def _fill_the_machine(watched: Watched, client: AsyncClient) -> None:
    """More sessions than the server takes: it refuses, and refusals are failed calls."""
    made = [await created_at_last(client) for _ in range(MAX_SESSIONS - 1)]

    async def refused_more() -> bool:
        for _ in range(5):
            with pytest.raises(SandlotError):
                await client.create()
        return {"SandlotErrors", "SandlotRefusesForCapacity"} <= (
            await watched.prometheus.firing() | watched.prometheus.fired
        )

    await eventually(refused_more, 40, lambda: f"so far {watched.prometheus.fired}")
    for session in made:
        await session.delete()
    await watched.prometheus.clears("SandlotErrors", "SandlotRefusesForCapacity")


async def _slow_the_engine(watched: Watched, client: AsyncClient) -> None:
    """The engine takes its time over containers. There is one warm sandbox for two creates."""
    watched.valve.creates_late_by = 6.0
    creates = asyncio.gather(*(created_at_last(client) for _ in range(2)))
    await watched.prometheus.fires("SandlotCreatesWait")
    sessions = await creates
    await watched.prometheus.fires("SandlotSlowCreates")
    watched.valve.creates_late_by = 0.0
    for session in sessions:
        await session.delete()
    await watched.prometheus.clears("SandlotCreatesWait", "SandlotSlowCreates")


async def _cut_off_the_engine(watched: Watched, client: AsyncClient, kept: AsyncSession) -> None:
    await watched.valve.cut()
    with contextlib.suppress(SandlotError):  # takes the warm sandbox, so that another one has to be made
        await client.create()
    await watched.prometheus.fires("SandlotEnvironmentBroken")
    await watched.valve.open()
    await watched.prometheus.clears("SandlotEnvironmentBroken")
    async for session in client.sessions():
        if session.id != kept.id:
            await session.delete()


async def _fill_the_disk(watched: Watched, session: AsyncSession) -> None:
    watched.fill_disk()
    for _ in range(20):
        with contextlib.suppress(SandlotError):
            await session.run("true")
    await watched.prometheus.fires("SandlotDiskFillsUp", "SandlotRefusesCreates", "SandlotHistoryLags")
    watched.make_room()
    await watched.prometheus.clears("SandlotDiskFillsUp", "SandlotRefusesCreates", "SandlotHistoryLags")
