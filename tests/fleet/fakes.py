"""A fleet without Docker: workers are fakes behind real HTTP, the directory is the one in memory with a clock of the
test's own.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass, field, replace

from sandlot.api.fleet.worker import assigned_create_route, worker_routes
from sandlot.domain.artifacts.artifact import Artifact, ArtifactPage
from sandlot.domain.artifacts.listing import page_among
from sandlot.domain.callers.limits import AllowancesOf, no_allowances
from sandlot.domain.callers.principal import Principal
from sandlot.domain.capacity.machine import Condition
from sandlot.domain.environment import Environment, Recipe
from sandlot.domain.errors import SessionEnded, Unsupported
from sandlot.domain.ids import artifact_tag
from sandlot.domain.service import Catalogue, EnvironmentInfo, Opened, ServiceHealth
from sandlot.domain.session import Assignment, CreateSession, Session, SessionState
from sandlot.domain.volumes.volume import CreateVolume, Volume
from sandlot.fleet.access import AccessTokens, TokenGate
from sandlot.fleet.coordinator.options import CoordinatorOptions
from sandlot.fleet.directory.contract import Room, SessionEntry, Timings, WorkerCard, WorkerReport
from sandlot.fleet.directory.lease import Lease
from sandlot.fleet.directory.memory import MemoryDirectory
from sandlot.fleet.directory.volume_names import VolumeEntry
from sandlot.fleet.signing_keys import SigningKey
from sandlot.testing import FakeService
from tests.owned import OwnCoordinator
from tests.service.served import served

TIMINGS = Timings(lease_s=10, lost_after_s=60)
CATALOGUE = Catalogue((EnvironmentInfo.of(Recipe(Environment("base", "sandlot/base"))),))
SIGNING_KEY = SigningKey.generate("k1")


class FleetFake(FakeService):
    """A fake that records what it opens, as a worker does."""

    def __init__(self, directory: MemoryDirectory, name: str) -> None:
        super().__init__(worker_id=name)
        self.directory = directory
        self.lease: Lease | None = None
        self.draining = False
        self.condition = Condition()
        self.assignments: list[Assignment] = []
        self.refusal: Exception | None = None
        self.saved: Sequence[Artifact] | None = None  # in object storage; None: there is none
        self.lets_create = asyncio.Event()
        self.lets_create.set()

    async def create_assigned(
        self, principal: Principal, request: CreateSession, assignment: Assignment
    ) -> Opened:
        self.assignments.append(assignment)
        await self.lets_create.wait()
        if self.refusal is not None:
            raise self.refusal
        opened = await self.acting_for(principal).create_session(request)
        await self.record(opened.session, request.idempotency_key, self.assignments[-1].reservation)
        return opened

    async def record(self, session: Session, key: str | None = None, reservation: str | None = None) -> None:
        assert self.lease is not None
        await self.directory.record(self.lease, [SessionEntry(session, reservation, key)])

    async def delete_session(self, session_id: str) -> None:
        session = await self.get_session(session_id)
        await super().delete_session(session_id)
        try:
            await self.get_session(session_id)
        except SessionEnded:
            ended = replace(session, state=SessionState.ENDED, ended_at=session.created_at)
            await self.record(ended)

    async def list_saved_artifacts(
        self,
        principal: Principal,
        session_id: str | None,
        thread: str | None,
        after: str | None,
        limit: int,
        without: Collection[str],
    ) -> ArtifactPage:
        if self.saved is None:
            raise Unsupported("This worker has no object storage.")
        found = [
            one
            for one in self.saved
            if one.tenant == principal.tenant
            and session_id in (None, one.session_id)
            and artifact_tag(one.id) not in without
        ]
        return page_among(found, after=after, limit=limit)

    async def create_volume(self, request: CreateVolume) -> Volume:
        volume = await super().create_volume(request)
        assert self.lease is not None
        assert not await self.directory.record_volumes(self.lease, [VolumeEntry.of(volume)])
        return volume

    async def delete_volume(self, volume: str) -> None:
        found = self._volumes.find(self._principal.tenant, volume)
        await super().delete_volume(volume)
        if found is not None:
            assert self.lease is not None
            await self.directory.forget_volume(self.lease, VolumeEntry.of(found))

    async def health(self) -> ServiceHealth:
        return replace(await super().health(), creates=not self.draining)

    def set_draining(self, draining: bool) -> None:
        self.draining = draining


@dataclass
class Scene:
    now: float = 0.0
    workers: dict[str, FleetFake] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._coordinators: list[OwnCoordinator] = []
        self.directory = MemoryDirectory(timings=TIMINGS, clock=lambda: self.now)
        self.coordinator = self.another()

    def another(
        self,
        options: CoordinatorOptions | None = None,
        *,
        key: SigningKey = SIGNING_KEY,
        allowances: AllowancesOf = no_allowances,
    ) -> OwnCoordinator:
        tokens = AccessTokens(key, lifetime_s=60)
        made = OwnCoordinator(self.directory, tokens, CATALOGUE, options, allowances)
        self._coordinators.append(made)
        return made

    async def close(self) -> None:
        for coordinator in self._coordinators:
            await coordinator.close()

    async def join(self, name: str, url: str, *, warm: int = 5) -> FleetFake:
        fake = self.workers.setdefault(name, FleetFake(self.directory, name))
        fake.lease = await self.directory.join(WorkerCard(name, url, "1"), "token-" + name)
        await self.report(name, warm=warm)
        return fake

    async def report(self, name: str, *, warm: int = 5, keys: tuple[str, ...] = ()) -> None:
        lease = self.workers[name].lease
        assert lease is not None
        fake = self.workers[name]
        report = WorkerReport(
            room={"base": Room(warm, warm)},
            draining=fake.draining,
            keys=keys,
            problems=fake.condition.problems,
            machine=fake.condition.use,
        )
        await self.directory.report(lease, report)

    async def pass_time(self, seconds: float, *, silent: tuple[str, ...] = ()) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now = min(until, self.now + TIMINGS.lease_s / 3)
            for name in self.workers:
                if name not in silent:
                    await self.report(name)


@contextlib.asynccontextmanager
async def listening(name: str, fake: FleetFake) -> AsyncIterator[str]:
    gate = TokenGate(SIGNING_KEY.public, worker_id=name, generation_of=lambda _: None)
    routes = {"routers": [worker_routes(fake)], "raw_routes": [assigned_create_route(fake)]}
    async with served(fake, tokens=gate, worker_id=name, **routes) as url:
        yield url


@contextlib.asynccontextmanager
async def two_workers() -> AsyncIterator[Scene]:
    """Two workers, w1 with more room; the directory has settled."""
    scene = Scene()
    async with contextlib.AsyncExitStack() as stack:
        for name, warm in (("w1", 9), ("w2", 5)):
            fake = scene.workers[name] = FleetFake(scene.directory, name)
            await scene.join(name, await stack.enter_async_context(listening(name, fake)), warm=warm)
        await scene.pass_time(TIMINGS.lease_s)
        await scene.report("w1", warm=9)
        stack.push_async_callback(scene.close)
        yield scene


def nobody() -> str:
    """An address at which nobody listens, and that no connection of this machine is given as its own."""
    return "http://127.0.0.1:1"
