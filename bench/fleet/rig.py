"""A fleet for benchmarks on this machine: Redis, workers and coordinators.

Redis has an append-only file. The members are processes that a benchmark can kill, freeze and restart.
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
from sandlot.fleet.directory.contract import Timings
from sandlot.fleet.directory.redis_directory import RedisDirectory
from sandlot.fleet.signing_keys import SigningKey
from sandlot.testing.directory_suite.redis_server import RedisServer, free_port

STARTED_WITHIN_S = 60.0
STOPPED_WITHIN_S = 60.0
REMOVED_WITHIN_S = 120.0
# Deadline of the rig's own calls to Redis.
ASK_WITHIN_S = 5.0


class Member:
    """A worker or a coordinator.

    ``settings`` become SANDLOT_… variables. ``id`` is the label on a worker's containers.
    """

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
            # Benchmarks measure how many sandboxes can run, so admission must not refuse any.
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
        """Seconds since the last start."""
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
        """Returns bytes of memory and open descriptors, or zeros if the process has just ended."""
        try:
            return rss_bytes(self.pid), len(os.listdir(f"/proc/{self.pid}/fd"))
        except OSError:
            return 0, 0

    # What the engine holds for a worker:

    def containers(self) -> dict[str, str]:
        """Returns the state of each container by sandbox id."""
        listed = docker("ps", "-a", "--filter", f"label=sandlot.owner={self.id}", "--format", "{{json .}}")
        found = {}
        for line in listed.stdout.splitlines():
            row = json.loads(line)
            labels = dict(part.partition("=")[::2] for part in row["Labels"].split(","))
            found[labels["sandlot.sandbox"]] = row["State"]
        return found

    def volumes(self) -> tuple[str, ...]:
        """Returns the sandbox ids that have a volume."""
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
        """Waits until each worker has that many warm sandboxes."""
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
    direct: tuple[bool, ...] = (True,),
    settings: Mapping[str, object] | None = None,
) -> AsyncIterator[Fleet]:
    """Starts a fleet and removes it at the end.

    ``direct`` says for each coordinator whether it sends clients straight to the workers. The last
    value counts for the rest. ``settings`` are the workers' settings.
    """
    folder = Path(tempfile.mkdtemp(prefix="sandlot-test-"))
    prefix = f"{owner}-{secrets.token_hex(3)}"
    redis = RedisServer("--appendonly", "yes", "--appendfsync", "everysec")
    members = Fleet(redis, Timings(lease_s=lease_s, lost_after_s=lost_after_s), folder)
    key = SigningKey.generate("bench")
    shared = {
        "redis_url": redis.url,
        "lease_s": lease_s,
        "lost_after_s": lost_after_s,
        "log_level": "warning",
    }
    for number in range(workers):
        data_dir = folder / f"w{number}"
        data_dir.mkdir()
        own = {
            "worker_id": f"{prefix}-w{number}",
            "data_dir": data_dir,
            "fleet_public_keys": key.public.text,
        }
        members.workers.append(Member("worker", f"w{number}", folder, {**shared, **own, **(settings or {})}))
    for number in range(coordinators):
        enabled = direct[min(number, len(direct) - 1)]
        members.coordinators.append(
            Member(
                "coordinator",
                f"c{number}",
                folder,
                {**shared, "direct": enabled, "fleet_private_key": key.text},
            )
        )
    try:
        redis.start()
        for member in members.members:
            member.start()
        for member in members.members:
            await member.wait_ready()
        yield members
    finally:
        for member in members.members:
            if member.running:
                member.signal(signal.SIGCONT)
        await asyncio.gather(*(member.kill() for member in members.members if member.running))
        redis.remove()
        await _remove([worker.id for worker in members.workers])
        shutil.rmtree(folder, ignore_errors=True)


async def _remove(owners: list[str]) -> None:
    """Removes the owners' containers and volumes until none is left.

    It repeats, because the engine may still carry out what a worker asked for before it died.
    """
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
                    await asyncio.to_thread(docker_lenient, *removal, *names)
        if not left:
            return
        if time.monotonic() > deadline:
            progress(f"{left} containers and volumes cannot be removed")
            return


def docker_lenient(*arguments: str) -> None:
    """Runs docker and only logs a failure: a container may be gone since it was listed."""
    try:
        docker(*arguments)
    except subprocess.CalledProcessError as error:
        progress(error.stderr.decode("utf-8", "replace").strip()[:300])
