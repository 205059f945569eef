"""A server for benchmarks in its own process, measured from outside as its users see it."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.rig import docker, progress, rss_bytes
from sandlot import AsyncClient

REMOVERS = 4
READY_WITHIN_S = 30.0
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass
class Served:
    url: str
    pid: int
    owner: str
    data_dir: Path
    api_key: str | None = None

    def client(self) -> AsyncClient:
        return AsyncClient(self.url, api_key=self.api_key)

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND

    def rss_bytes(self) -> int:
        return rss_bytes(self.pid)

    def containers(self) -> int:
        return len(docker("ps", "-aq", "--filter", f"label=sandlot.owner={self.owner}").stdout.split())

    async def wait_warm(self, count: int, environment: str = "base") -> None:
        async with self.client() as client:
            shown = 0
            while (ready := (await client.health()).pools[environment].ready) < count:
                if ready >= shown + 100:
                    shown = ready
                    progress(f"warm: {ready} of {count}")
                await asyncio.sleep(0.2)


@asynccontextmanager
async def serving(
    *,
    module: str = "sandlot",
    environ: Mapping[str, str] | None = None,
    ready_within_s: float = READY_WITHIN_S,
    **settings: object,
) -> AsyncIterator[Served]:
    """Runs ``python -m module serve`` and removes it at the end.

    A benchmark may bring its own module, and variables for it.
    """
    data_dir = Path(tempfile.mkdtemp(prefix="sandlot-bench-"))
    owner = f"bench-{secrets.token_hex(4)}"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith("SANDLOT_")},
        **(environ or {}),
        "SANDLOT_PORT": str(port),
        "SANDLOT_WORKER_ID": owner,
        "SANDLOT_DATA_DIR": str(data_dir),
        "SANDLOT_LOG_LEVEL": "warning",
        # Benchmarks measure how many sandboxes can run, so admission must not refuse any.
        "SANDLOT_OVERCOMMIT_MEMORY": "1000",
        "SANDLOT_OVERCOMMIT_CPUS": "1000",
        **{f"SANDLOT_{name.upper()}": str(value) for name, value in settings.items()},
    }
    with (data_dir / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", module, "serve"], env=environ, stdout=log, stderr=log
        )
    api_key = environ.get("SANDLOT_API_KEY")
    served = Served(f"http://127.0.0.1:{port}", process.pid, owner, data_dir, api_key)
    try:
        await _wait_ready(served, process, data_dir / "log", ready_within_s)
        yield served
    finally:
        # Stop the server first. Otherwise its pool would refill while sessions are removed.
        process.send_signal(signal.SIGTERM)
        process.wait(300)
        progress("removing what is left")
        await _remove(owner, ("ps", "-aq"), ("rm", "-f"))
        await _remove(owner, ("volume", "ls", "-q"), ("volume", "rm", "-f"))
        shutil.rmtree(data_dir, ignore_errors=True)


async def _remove(owner: str, listing: tuple[str, ...], removal: tuple[str, ...]) -> None:
    names = docker(*listing, "--filter", f"label=sandlot.owner={owner}").stdout.decode().split()
    slots = asyncio.Semaphore(REMOVERS)

    async def remove(some: list[str]) -> None:
        async with slots:
            await asyncio.to_thread(docker, *removal, *some)

    await asyncio.gather(*(remove(names[begin : begin + 20]) for begin in range(0, len(names), 20)))


async def _wait_ready(served: Served, process: subprocess.Popen[bytes], log: Path, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    async with served.client() as client:
        while True:
            assert process.poll() is None, log.read_text()
            try:
                if (await client.health()).ready:
                    return
            except Exception:  # noqa: BLE001  # the server is still starting
                assert time.monotonic() < deadline, log.read_text()
            await asyncio.sleep(0.1)
