"""A real fleet: workers, coordinators and a Redis, each a process of its own, which tests may kill, stop, cut off and
start again, and what must hold afterwards.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from redis import Redis

from sandlot import AsyncClient, AsyncSession
from sandlot.client.http import HttpService
from sandlot.client.http.administrator import Administrator
from sandlot.domain.callers.limits import tenant_holder
from sandlot.domain.callers.principal import OWNER
from sandlot.domain.errors import SandlotError
from sandlot.domain.ids import first_workspace_of
from sandlot.domain.recovery import LIVE_STATES
from sandlot.fleet.access import AccessTokens, token_times
from sandlot.fleet.directory.contract import Timings
from sandlot.fleet.directory.redis_directory import RedisDirectory
from sandlot.fleet.signing_keys import SigningKey
from sandlot.testing.directory_suite.redis_server import RedisServer
from sandlot.testing.eventually import eventually
from sandlot.wire.key_bodies import CreateKeyBody
from tests.faults.invariants import Footprint, unforeseen
from tests.faults.rig import ServerProcess, created_at_last
from tests.fleet.crew import recorded_for
from tests.fleet_faults.member import Member
from tests.fleet_faults.network import Line

KEY = "a-key-for-the-tests-alone"
# Short, so that a test can wait for a worker to be given up: 12 s after its last report. Longer than a busy machine
# of two cores keeps a worker from reporting.
TIMINGS = Timings(lease_s=3.0, lost_after_s=9.0)
# Of the tests' own questions to Redis, which are not what is tested.
DEADLINE_S = 20.0
READY_WITHIN_S = 60.0
# A busy engine takes more than a minute to remove a sandbox, now and then.
SETTLED_WITHIN_S = 100.0
WARM_WITHIN_S = 60.0
# Connections that members keep open to each other and to Redis for a while, after many came at once.
KEPT_CONNECTIONS = 100


class Fleet:
    """``line``: members reach Redis on a way that can be made slow. ``settings`` are the workers'.

    ``redis`` and ``redis_environ`` are for a directory that is not one plain Redis; the test starts it.
    """

    def __init__(
        self,
        *,
        workers: int = 3,
        coordinators: int = 2,
        redis: RedisServer | None = None,
        redis_environ: Mapping[str, str] | None = None,
        line: bool = False,
        timings: Timings = TIMINGS,
        **settings: str,
    ) -> None:
        self._own_redis = redis is None
        # Written at once and never synced: its death loses nothing of that, and no slow disk holds it up.
        self.redis = redis or RedisServer("--appendonly", "yes", "--appendfsync", "no")
        self.line = Line(self.redis.port) if line else None
        self.timings = timings
        self.key = SigningKey.generate("k1")
        port = self.line.port if self.line else self.redis.port
        self.redis_environ = redis_environ or {"SANDLOT_REDIS_URL": f"redis://127.0.0.1:{port}/0"}
        self.settings = settings
        self.workers = [self.new_worker() for _ in range(workers)]
        self.coordinators = [self.new_coordinator() for _ in range(coordinators)]
        self._seen = ""

    def new_worker(self, **options: Any) -> Member:
        """Not yet one of ``workers``."""
        own = {"fleet_public_keys": self.key.public.text, **self.settings, **options}
        return Member("worker", self.redis_environ, self.timings, **own)

    def new_coordinator(self, **options: Any) -> Member:
        own = {"fleet_private_key": self.key.text, "api_key": KEY, **options}
        return Member("coordinator", self.redis_environ, self.timings, **own)

    @property
    def members(self) -> list[Member]:
        return [*self.workers, *self.coordinators]

    async def start(self) -> None:
        if self._own_redis:
            self.redis.start()
        if self.line is not None:
            self.line.open()
        for member in self.members:
            await member.start(ready=False)
        for member in self.members:
            await member.wait_ready(READY_WITHIN_S)
            member.baseline = Footprint.of(member.pid)

    async def mend(self) -> None:
        """After a test that failed half way: everybody runs, and no sessions are left."""
        for member in self.members:
            if member.runs:
                member.thaw()
            else:
                await member.start()
        async with self.client() as client:
            async for session in client.sessions():
                await session.delete()

    async def key_of(self, tenant: str) -> str:
        """A new key of this tenant, for everything with sandboxes and nothing else."""
        administrator = Administrator(self.coordinators[0].url, KEY)
        try:
            return (await administrator.create_key(CreateKeyBody("of the tests", tenant=tenant))).secret
        finally:
            await administrator.close()

    def client(self, coordinator: int = 0, *, straight: bool = True, key: str = KEY) -> AsyncClient:
        """``straight``: data goes to the worker itself, otherwise all of it through the coordinator. Both are
        in a hurry: a refusal is what these tests look for.
        """
        url = self.coordinators[coordinator].url
        if straight:
            return AsyncClient(url, api_key=key, patience_s=0)
        return _ProxiedClient(url, key)

    def worker_of(self, session: AsyncSession) -> Member:
        owner = self.workers[0].docker(
            *("ps", "-a", "--filter", f"label=sandlot.sandbox={session.info.sandbox_id}"),
            *("--format", '{{.Label "sandlot.owner"}}'),
        )
        return next(worker for worker in self.workers if worker.owner == owner.strip())

    async def session_on(self, worker: Member, client: AsyncClient, **options: Any) -> AsyncSession:
        """A new one that lies on this worker, of a thread of its own; what lands elsewhere on the way is deleted."""
        # Workers with a warm sandbox come before those whose pool is still being filled, however much room these have.
        await eventually(
            partial(self._offers_warm, worker), WARM_WITHIN_S, f"{worker.owner} offers a warm sandbox"
        )
        elsewhere: list[AsyncSession] = []
        try:
            for _ in range(12):
                thread = f"on-{secrets.token_hex(4)}"
                session = await created_at_last(client, thread=thread, certain=False, **options)
                if self.worker_of(session) is worker:
                    return session
                elsewhere.append(session)
            raise AssertionError(f"twelve creates, and none came to {worker.owner}")
        finally:
            for session in elsewhere:
                await session.delete()

    async def _offers_warm(self, worker: Member) -> bool:
        async with self.directory() as directory:
            reports = [status.report for status in await directory.workers() if status.ref.id == worker.owner]
        return any(room.warm for report in reports if report for room in report.room.values())

    @asynccontextmanager
    async def directory(self) -> AsyncIterator[RedisDirectory]:
        """As it is, not as members see it."""
        directory = RedisDirectory.open(self.redis.url, timings=self.timings, deadline_s=DEADLINE_S)
        try:
            yield directory
        finally:
            await directory.close()

    @property
    def tokens(self) -> AccessTokens:
        """As coordinators make them."""
        times = token_times(self.timings.lost_after_s)
        return AccessTokens(self.key, lifetime_s=times.lifetime_s)

    async def metrics(self, member: Member) -> str:
        token = member.api_key or self.tokens.for_member(member.owner, OWNER)
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {token}"}) as http:
            return (await http.get(f"{member.url}/metrics", timeout=20)).raise_for_status().text

    def redis_folder(self) -> Path:
        with Redis.from_url(self.redis.url, decode_responses=True) as redis:
            return Path(redis.config_get("dir")["dir"])

    # --- what must hold ---------------------------------------------------------------------------

    async def settle(self, seconds: float = SETTLED_WITHIN_S) -> None:
        """I1, I5, I9: what the engine has for every running worker, what that worker knows, what the directory
        holds and what every coordinator lists become the same; no member holds more than it did, and nothing
        that it could not foresee has happened to it.
        """

        async def same() -> bool:
            try:
                differences = await self._differences()
            except (SandlotError, httpx.HTTPError) as error:
                differences = [repr(error)]
            self._seen = "; ".join(differences)
            return not differences

        await eventually(same, seconds, lambda: self._seen)
        for member in self.members:
            log = member.log.read_text()
            assert not unforeseen(log), log

    async def _differences(self) -> list[str]:
        lists = await self._lists()
        listed = lists[0]
        held = await self._held()
        found: list[str] = []
        if any(one.keys() != listed.keys() for one in lists):
            found.append(f"coordinators disagree: {[sorted(one) for one in lists]}")
        threads = [session.thread for session in listed.values() if session.thread is not None]
        if len(threads) != len(set(threads)):
            found.append(f"two sessions of one thread: {sorted(threads)}")
        in_directory = [session_id for ids in held.values() for session_id in ids]
        if sorted(in_directory) != sorted(listed):
            found.append(f"the directory has {sorted(in_directory)}, listed are {sorted(listed)}")
        async with self.directory() as directory:
            reserved = (await directory.status()).reservations
            used = (await directory.use(tenant_holder(OWNER.tenant))).sessions
        if not len(listed) <= used <= len(listed) + reserved:
            found.append(
                f"{used} sessions count towards limits; {len(listed)} are listed, {reserved} reserved"
            )
        for worker in self.workers:
            if worker.runs:
                sessions = [listed[session_id] for session_id in held[worker.owner] if session_id in listed]
                found += await self._differences_of(worker, sessions)
        for coordinator in self.coordinators:
            if coordinator.runs:
                found += _grown(coordinator, 0)
        return found

    async def _lists(self) -> list[dict[str, AsyncSession]]:
        """Of every running coordinator, one after the other: what ends meanwhile is in the first alone."""
        lists = []
        for number, coordinator in enumerate(self.coordinators):
            if coordinator.runs:
                async with self.client(number) as client:
                    lists.append({session.id: session async for session in client.sessions()})
        return lists

    async def _held(self) -> dict[str, set[str]]:
        held: dict[str, set[str]] = {worker.owner: set() for worker in self.workers}
        async with self.directory() as directory:
            for status in await directory.workers():
                held[status.ref.id] = await recorded_for(directory, status.ref.id)
        return held

    async def _differences_of(self, worker: Member, sessions: list[AsyncSession]) -> list[str]:
        health = await worker.open_health()
        expected = {session.info.sandbox_id for session in sessions if session.info.sandbox_id}
        containers, stored, folders = await asyncio.to_thread(_on_disk, worker)
        kept = {first_workspace_of(sandbox_id) for sandbox_id in containers.keys() - expected}
        kept |= {session.info.workspace.id for session in sessions if session.info.workspace}
        found: list[str] = []
        if health["active_sessions"] != len(sessions):
            found.append(f"knows {health['active_sessions']} sessions, the directory {len(sessions)}")
        if not expected <= containers.keys() or len(containers) != len(expected) + health["pool_size"]:
            found.append(f"sandboxes {containers}, expected {expected} and {health['pool_size']} warm ones")
        if not all(state in LIVE_STATES for state in containers.values()):
            found.append(f"states {containers}")
        if stored != kept:
            found.append(f"workspaces {stored}, expected {kept}")
        if folders != {sandbox_id.removeprefix("sbx_")[:16] for sandbox_id in containers}:
            found.append(f"folders {folders} of {containers}")
        return [f"{worker.owner}: {one}" for one in found] + _grown(worker, len(containers))

    async def clean(self) -> None:
        for member in self.members:
            await member.clean()
        if self.line is not None:
            self.line.close()
        if self._own_redis:
            self.redis.remove()


@asynccontextmanager
async def running(fleet: Fleet) -> AsyncIterator[Fleet]:
    """Whatever happens, nothing of it is left afterwards."""
    try:
        await fleet.start()
        yield fleet
    finally:
        await fleet.clean()


class _ProxiedClient(AsyncClient):
    """Its service is its own, and is closed with it."""

    def __init__(self, url: str, key: str) -> None:
        self._proxied = HttpService(url, key, direct=False, patience_s=0)
        super().__init__(service=self._proxied)

    async def aclose(self) -> None:
        await super().aclose()
        await self._proxied.close()


def _on_disk(worker: ServerProcess) -> tuple[dict[str, str], set[str], set[str]]:
    return worker.containers(), worker.workspaces(), worker.folders()


def _grown(member: Member, sandboxes: int) -> list[str]:
    footprint = Footprint.of(member.pid)
    if member.baseline is None:
        return []
    with_connections = replace(member.baseline, fds=member.baseline.fds + KEPT_CONNECTIONS)
    if footprint.is_near(with_connections, sandboxes):
        return []
    return [f"{member.owner}: {footprint} after {member.baseline}"]
