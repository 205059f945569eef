"""The faults: each is done to somebody, lasts a while, and is taken back; then the fleet must be well again."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import httpx
from redis.asyncio import Redis

from bench.chaos.checker import HEALED_WITHIN_S
from bench.chaos.history import Event, Recorder
from bench.fleet_rig import Fleet, Member, docker_anyway
from bench.rig import progress
from sandlot.domain.errors import SandlotError
from sandlot.domain.session import DEFAULT_TENANT

PROBE_WITHIN_S = 15.0
TWO_AT_ONCE = 0.25
SANDBOXES_REMOVED = 3


@dataclass(frozen=True, slots=True)
class Fault:
    """``scope``: what it touches; two at once touch different things. ``alone``: never together with another."""

    kind: str
    scope: str
    do: Callable[[], Awaitable[str]]
    alone: bool = False


class Faults:
    def __init__(
        self, fleet: Fleet, recorder: Recorder, clock: Callable[[], float], chance: random.Random
    ) -> None:
        self._fleet = fleet
        self._recorder = recorder
        self._clock = clock
        self._chance = chance
        # Members that are not running because we ended them.
        self.ended: set[str] = set()
        self._kinds = [
            Fault("worker killed", "worker", self._worker_killed),
            Fault("worker killed, away for long", "worker", self._worker_away),
            Fault("worker frozen, shorter than its lease", "worker", self._worker_frozen_shortly),
            Fault("worker frozen until it is lost", "worker", self._worker_frozen_for_long),
            Fault("worker stopped and started", "worker", self._worker_rolled),
            Fault("worker drained, then restarted", "worker", self._worker_drained),
            Fault("coordinator killed", "coordinator", self._coordinator_killed),
            Fault("Redis killed", "redis", self._redis_killed),
            Fault("Redis frozen", "redis", self._redis_frozen),
            # What an emptied Redis does not hear of within a lease it cannot know: a worker that is away then
            # comes back too late for its threads.
            Fault("Redis emptied", "redis", self._redis_emptied, alone=True),
            Fault("sandboxes removed", "sandbox", self._sandboxes_removed),
        ]
        self._left: list[Fault] = []

    async def strike(self) -> None:
        """One fault, or two, until the fleet is well again."""
        chosen = [self._draw()]
        if not chosen[0].alone and self._chance.random() < TWO_AT_ONCE:
            others = [kind for kind in self._kinds if not kind.alone and kind.scope != chosen[0].scope]
            chosen.append(self._chance.choice(others))
        name = " + ".join(fault.kind for fault in chosen)
        began = self._clock()
        targets = await asyncio.gather(*(fault.do() for fault in chosen))
        over = self._clock()
        self._recorder.add(Event("fault", began, kind=name, target=" + ".join(targets), seconds=over - began))
        seconds = await self._healed()
        progress(f"{self._clock():6.1f} s: {name} ({', '.join(targets)}), well after {seconds:.1f} s")
        self._recorder.add(Event("healed", self._clock(), kind=name, seconds=seconds))

    def _draw(self) -> Fault:
        """Every kind comes up once before any comes again."""
        if not self._left:
            self._left = self._chance.sample(self._kinds, len(self._kinds))
        return self._left.pop()

    # --- workers and coordinators -----------------------------------------------------------------

    def _worker(self) -> Member:
        return self._chance.choice(self._fleet.workers)

    async def _down(self, member: Member, number: int, seconds: float) -> str:
        self.ended.add(member.name)
        await (member.kill() if number == signal.SIGKILL else member.terminate())
        await asyncio.sleep(seconds)
        member.start()
        self.ended.discard(member.name)
        return member.name

    async def _frozen(self, member: Member, seconds: float) -> str:
        member.signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        member.signal(signal.SIGCONT)
        return member.name

    async def _worker_killed(self) -> str:
        return await self._down(self._worker(), signal.SIGKILL, self._chance.uniform(0, 2))

    async def _worker_away(self) -> str:
        timings = self._fleet.timings
        seconds = timings.lease_s + timings.lost_after_s + self._chance.uniform(2, 5)
        return await self._down(self._worker(), signal.SIGKILL, seconds)

    async def _worker_frozen_shortly(self) -> str:
        return await self._frozen(
            self._worker(), self._chance.uniform(0.3, 0.9) * self._fleet.timings.lease_s
        )

    async def _worker_frozen_for_long(self) -> str:
        timings = self._fleet.timings
        seconds = timings.lease_s + timings.lost_after_s + self._chance.uniform(2, 5)
        return await self._frozen(self._worker(), seconds)

    async def _worker_rolled(self) -> str:
        return await self._down(self._worker(), signal.SIGTERM, 0)

    async def _worker_drained(self) -> str:
        worker = self._worker()
        coordinator = self._chance.choice(self._fleet.coordinators)
        async with httpx.AsyncClient(trust_env=False) as http:
            try:
                url = f"{coordinator.url}/v1/fleet/workers/{worker.id}/drain"
                (await http.post(url, json={}, timeout=10)).raise_for_status()
            except httpx.HTTPError as error:  # another fault at the same time: then it is only restarted
                progress(f"not drained: {error!r}")
        await asyncio.sleep(self._chance.uniform(2, 5))
        return await self._down(worker, signal.SIGTERM, 0)

    async def _coordinator_killed(self) -> str:
        coordinator = self._chance.choice(self._fleet.coordinators)
        return await self._down(coordinator, signal.SIGKILL, self._chance.uniform(0, 3))

    # --- Redis and sandboxes ------------------------------------------------------------------------

    async def _redis_killed(self) -> str:
        await asyncio.to_thread(self._fleet.redis.kill)
        await asyncio.sleep(self._chance.uniform(0, 4))
        await asyncio.to_thread(self._fleet.redis.start)
        return "redis"

    async def _redis_frozen(self) -> str:
        self._fleet.redis.signal(signal.SIGSTOP)
        await asyncio.sleep(self._chance.uniform(1, 8))
        self._fleet.redis.signal(signal.SIGCONT)
        return "redis"

    async def _redis_emptied(self) -> str:
        plain = Redis.from_url(self._fleet.redis.url)
        await plain.flushall()
        await plain.aclose()
        return "redis"

    async def _sandboxes_removed(self) -> str:
        directory = self._fleet.directory()
        try:
            found = (await directory.page(DEFAULT_TENANT)).found
        except SandlotError:
            found = ()
        finally:
            await directory.close()
        sandboxes = [known.session.sandbox_id for known in found if known.session.sandbox_id]
        if not sandboxes:
            return "none"
        chosen = self._chance.sample(sandboxes, min(len(sandboxes), SANDBOXES_REMOVED))
        await asyncio.to_thread(docker_anyway, "rm", "-f", *(f"sandlot-{sandbox}" for sandbox in chosen))
        return ", ".join(chosen)

    # --- well again -----------------------------------------------------------------------------------

    async def _healed(self) -> float:
        """Seconds until every member is ready and a new session works at every coordinator."""
        began = time.monotonic()
        async with httpx.AsyncClient(trust_env=False) as http:
            while (spent := time.monotonic() - began) <= HEALED_WITHIN_S:
                ready = [await member.is_ready(http) for member in self._fleet.members]
                if all(ready) and await self._works():
                    return time.monotonic() - began
                await asyncio.sleep(0.2)
        return spent

    async def _works(self) -> bool:
        try:
            async with asyncio.timeout(PROBE_WITHIN_S):
                for number in range(len(self._fleet.coordinators)):
                    async with self._fleet.client(number) as client:
                        session = await client.create()
                        result = await session.run(["echo", "well"])
                        await session.delete()
                        if result.output != "well\n":
                            return False
        except (SandlotError, TimeoutError):
            return False
        return True
