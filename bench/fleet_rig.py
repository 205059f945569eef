"""A fleet of the benchmark's own on this machine: a Redis with an append-only file, workers and coordinators as
processes that may be killed, frozen and started again.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from bench.rig import docker, progress, rss_bytes
from sandlot import AsyncClient
from sandlot.fleet.directory import Timings
from sandlot.fleet.redis_directory import RedisDirectory
from sandlot.testing.directory_suite.redis_server import RedisServer, free_port

STARTED_WITHIN_S = 60.0
STOPPED_WITHIN_S = 60.0
REMOVED_WITHIN_S = 120.0
# Of the rig's own questions to Redis.
ASK_WITHIN_S = 5.0


class Member:
    """A worker or a coordinator. ``settings`` become SANDLOT_… variables; ``id`` marks a worker's containers."""

    def __init__(self, kind: str, name: str, folder: Path, settings: dict[str, object]) -> None:
        self.kind = kind
        self.name = name
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder / f"{name}.log"
        self.environ = {
            **{
                key: value
                for key, value in os.environ.items()
                if not key.startswith(("SANDLOT_", "DOCKER_", "REDIS_")) and key != "WORKERS"
            },
            "SANDLOT_PORT": str(self.port),
            # What is measured is how many there can be, not how many should be let in.
            "SANDLOT_OVERCOMMIT_MEMORY": "1000",
            "SANDLOT_OVERCOMMIT_CPUS": "1000",
            **{f"SANDLOT_{key.upper()}": str(value) for key, value in settings.items()},
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0

    def start(self) -> None:
        assert not self.running
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "sandlot", self.kind],
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._started_at = time.monotonic()

    @property
    def age_s(self) -> float:
        """Since it was last started."""
        return time.monotonic() - self._started_at

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def id(self) -> str:
        return self.environ["SANDLOT_WORKER_ID"]

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    async def kill(self) -> None:
        await self._end(signal.SIGKILL)

    async def terminate(self) -> None:
        await self._end(signal.SIGTERM)

    async def _end(self, number: int) -> None:
        assert self._process is not None
        if self.running:
            self.signal(number)
            await asyncio.to_thread(self._process.wait, STOPPED_WITHIN_S)

    async def is_ready(self, http: httpx.AsyncClient) -> bool:
        try:
            answer = await http.get(f"{self.url}/ready", timeout=5)
            return answer.status_code == 200 and bool(answer.json()["creates"])
        except httpx.HTTPError:
            return False

    async def wait_ready(self) -> None:
        deadline = time.monotonic() + STARTED_WITHIN_S
        async with httpx.AsyncClient(trust_env=False) as http:
            while not await self.is_ready(http):
                assert self.running, self.log.read_text()[-4000:]
                assert time.monotonic() < deadline, f"{self.name}: {self.log.read_text()[-4000:]}"
                await asyncio.sleep(0.1)

    def footprint(self) -> tuple[int, int]:
        """Bytes of memory and open descriptors; of a process that has just gone, none."""
        try:
            return rss_bytes(self.pid), len(os.listdir(f"/proc/{self.pid}/fd"))
        except OSError:
            return 0, 0

    # what the engine has of a worker

    def containers(self) -> dict[str, str]:
        """Sandbox id → state."""
        listed = docker("ps", "-a", "--filter", f"label=sandlot.owner={self.id}", "--format", "{{json .}}")
        found = {}
        for line in listed.stdout.splitlines():
            row = json.loads(line)
            labels = dict(part.partition("=")[::2] for part in row["Labels"].split(","))
            found[labels["sandlot.sandbox"]] = row["State"]
        return found

    def volumes(self) -> tuple[str, ...]:
        """Sandbox ids."""
        listed = docker("volume", "ls", "--filter", f"label=sandlot.owner={self.id}", "--format", "{{.Name}}")
        return tuple(name.removeprefix("sandlot-") for name in listed.stdout.decode().split())


@dataclass
class Fleet:
    redis: RedisServer
    timings: Timings
    folder: Path
    workers: list[Member] = field(default_factory=list)
    coordinators: list[Member] = field(default_factory=list)

    @property
    def members(self) -> list[Member]:
        return [*self.workers, *self.coordinators]

    def directory(self) -> RedisDirectory:
        return RedisDirectory.open(self.redis.url, timings=self.timings, deadline_s=ASK_WITHIN_S)

    def client(self, number: int = 0) -> AsyncClient:
        return AsyncClient(self.coordinators[number].url)

    async def wait_warm(self, count: int) -> None:
        """Each worker."""
        directory = self.directory()
        try:
            while True:
                rooms = [status.report.room for status in await directory.workers() if status.report]
                warm = [sum(room.warm for room in by_name.values()) for by_name in rooms]
                if len(warm) == len(self.workers) and min(warm) >= count:
                    return
                await asyncio.sleep(0.2)
        finally:
            await directory.close()


@asynccontextmanager
async def fleet(
    *,
    workers: int,
    coordinators: int,
    owner: str = "bench",
    lease_s: float = 10.0,
    lost_after_s: float = 60.0,
    straight: tuple[bool, ...] = (True,),
    settings: Mapping[str, object] | None = None,
) -> AsyncIterator[Fleet]:
    """``straight``: whether each coordinator sends clients to the workers; the last counts for the rest.
    ``settings`` are the workers'.
    """
    folder = Path(tempfile.mkdtemp(prefix="sandlot-test-"))
    mark = f"{owner}-{secrets.token_hex(3)}"
    redis = RedisServer("--appendonly", "yes", "--appendfsync", "everysec")
    made = Fleet(redis, Timings(lease_s=lease_s, lost_after_s=lost_after_s), folder)
    shared = {
        "redis_url": redis.url,
        "fleet_keys": f"bench:{secrets.token_hex(32)}",
        "lease_s": lease_s,
        "lost_after_s": lost_after_s,
        "log_level": "warning",
    }
    for number in range(workers):
        data_dir = folder / f"w{number}"
        data_dir.mkdir()
        own = {"worker_id": f"{mark}-w{number}", "data_dir": data_dir}
        made.workers.append(Member("worker", f"w{number}", folder, {**shared, **own, **(settings or {})}))
    for number in range(coordinators):
        direct = straight[min(number, len(straight) - 1)]
        made.coordinators.append(Member("coordinator", f"c{number}", folder, {**shared, "direct": direct}))
    try:
        redis.start()
        for member in made.members:
            member.start()
        for member in made.members:
            await member.wait_ready()
        yield made
    finally:
        for member in made.members:
            if member.running:
                member.signal(signal.SIGCONT)
        await asyncio.gather(*(member.kill() for member in made.members if member.running))
        redis.remove()
        await _remove([worker.id for worker in made.workers])
        shutil.rmtree(folder, ignore_errors=True)


async def _remove(owners: list[str]) -> None:
    """Again and again: what a worker asked of the engine before it died may still come to be."""
    deadline = time.monotonic() + REMOVED_WITHIN_S
    while True:
        left = 0
        for owner in owners:
            ours = ("-q", "--filter", f"label=sandlot.owner={owner}")
            for listing, removal in (
                (("ps", "-a"), ("rm", "-f")),
                (("volume", "ls"), ("volume", "rm", "-f")),
            ):
                names = docker(*listing, *ours).stdout.decode().split()
                left += len(names)
                if names:
                    await asyncio.to_thread(docker_anyway, *removal, *names)
        if not left:
            return
        if time.monotonic() > deadline:
            progress(f"{left} containers and volumes cannot be removed")
            return


def docker_anyway(*arguments: str) -> None:
    """One of them may be gone since it was listed."""
    try:
        docker(*arguments)
    except subprocess.CalledProcessError as error:
        progress(error.stderr.decode("utf-8", "replace").strip()[:300])
