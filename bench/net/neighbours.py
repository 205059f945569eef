"""Many sandboxes download at once: what another sandbox's commands notice, and the server's memory."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from bench.rig import p50, progress
from bench.server import Served
from sandlot import AsyncClient, AsyncSession

PAUSE_S = 0.1
SETTLE_S = 3.0
# Far more than anybody downloads before the end.
ENDLESS = 10**15
CREATES_AT_ONCE = 8
# NO_PROXY inside names 127.0.0.1, which here stands for a host outside.
DOWNLOAD = "exec curl -sS --noproxy '' -o /dev/null http://127.0.0.1:{port}/bytes/{size}"


@dataclass
class Neighbours:
    idle_ms: list[float] = field(default_factory=list)
    beside_ms: list[float] = field(default_factory=list)
    rss_mib: list[float] = field(default_factory=list)
    received_bytes: int = 0
    seconds: float = 0.0

    @property
    def ratio(self) -> float:
        return p50(self.beside_ms) / p50(self.idle_ms)

    @property
    def memory_growth(self) -> float:
        """The last quarter of the downloads beside their first."""
        quarter = max(1, len(self.rss_mib) // 4)
        return p50(self.rss_mib[-quarter:]) / p50(self.rss_mib[:quarter])


async def _echo(session: AsyncSession) -> float:
    began = time.perf_counter()
    result = await session.run("echo hi")
    took = (time.perf_counter() - began) * 1000
    assert result.stdout == "hi\n"
    await asyncio.sleep(PAUSE_S)
    return took


async def measure_neighbours(
    served: Served, client: AsyncClient, port: int, *, count: int, rounds: int
) -> Neighbours:
    seen, slots = Neighbours(), asyncio.Semaphore(CREATES_AT_ONCE)

    async def create() -> AsyncSession:
        async with slots:
            return await client.create(network=[f"127.0.0.1:{port}"])

    loud = await asyncio.gather(*(create() for _ in range(count)))
    quiet = await create()
    progress(f"{count} sandboxes; first nobody downloads")
    await asyncio.sleep(SETTLE_S)
    seen.idle_ms = [await _echo(quiet) for _ in range(rounds)]
    command = DOWNLOAD.format(port=port, size=ENDLESS)
    downloads = [await session.start(command) for session in loud]
    await asyncio.sleep(SETTLE_S)
    progress(f"{count} sandboxes download")
    began, before = time.monotonic(), await _received(loud)
    for _ in range(rounds):
        seen.beside_ms.append(await _echo(quiet))
        seen.rss_mib.append(served.rss_bytes() / 2**20)
    seen.received_bytes = await _received(loud) - before
    seen.seconds = time.monotonic() - began
    for download in downloads:
        status = await download.status()
        assert status.running, status
    await asyncio.gather(*(session.delete() for session in (*loud, quiet)))
    return seen


async def _received(sessions: list[AsyncSession]) -> int:
    states = await asyncio.gather(*(session.network.status() for session in sessions))
    return sum(state.traffic.received_bytes for state in states)
