"""The faults. Each hits a part of the fleet for a while and is undone; then the fleet must heal."""

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
from bench.fleet.rig import Fleet, Member, docker_lenient
from bench.rig import progress
from sandlot.domain.errors import SandlotError
from sandlot.domain.session import DEFAULT_TENANT

PROBE_WITHIN_S = 15.0
TWO_AT_ONCE = 0.25
SANDBOXES_REMOVED = 3


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault.

    ``scope`` is the part of the fleet that it hits. Two faults at once have different scopes.
    ``alone``: it never comes together with another.
    """

    kind: str
    scope: str
    do: Callable[[], Awaitable[str]]
    alone: bool = False


class Faults:
    def __init__(
        self, fleet: Fleet, recorder: Recorder, clock: Callable[[], float], rng: random.Random
    ) -> None:
        self._fleet = fleet
        self._recorder = recorder
        self._clock = clock
        self._rng = rng
        # Members that are down because a fault stopped them.
        self.ended: set[str] = set()
        self._kinds = [
            Fault("worker killed", "worker", self._worker_killed),
            Fault("worker killed, away for long", "worker", self._worker_away),
            Fault("worker frozen, shorter than its lease", "worker", self._worker_frozen_briefly),
            Fault("worker frozen until it is lost", "worker", self._worker_frozen_long),
            Fault("worker stopped and started", "worker", self._worker_rolled),
            Fault("worker drained, then restarted", "worker", self._worker_drained),
            Fault("coordinator killed", "coordinator", self._coordinator_killed),
            Fault("Redis killed", "redis", self._redis_killed),
            Fault("Redis frozen", "redis", self._redis_frozen),
            # An emptied Redis knows only what workers report within a lease. A worker that another
            # fault keeps away would return too late for its threads.
            Fault("Redis emptied", "redis", self._redis_emptied, alone=True),
            Fault("sandboxes removed", "sandbox", self._sandboxes_removed),
        ]
        self._remaining: list[Fault] = []

    async def inject(self) -> None:
        """Injects one fault, or two, and waits until the fleet has healed."""
        chosen = [self._pick()]
        if not chosen[0].alone and self._rng.random() < TWO_AT_ONCE:
            others = [kind for kind in self._kinds if not kind.alone and kind.scope != chosen[0].scope]
            chosen.append(self._rng.choice(others))
        name = " + ".join(fault.kind for fault in chosen)
        began = self._clock()
        targets = await asyncio.gather(*(fault.do() for fault in chosen))
        over = self._clock()
        self._recorder.add(Event("fault", began, kind=name, target=" + ".join(targets), seconds=over - began))
        seconds = await self._wait_healed()
        progress(f"{self._clock():6.1f} s: {name} ({', '.join(targets)}), well after {seconds:.1f} s")
        self._recorder.add(Event("healed", self._clock(), kind=name, seconds=seconds))

    def _pick(self) -> Fault:
        """Picks a fault at random. Every kind comes once before any comes again."""
        if not self._remaining:
            self._remaining = self._rng.sample(self._kinds, len(self._kinds))
        return self._remaining.pop()

    # --- workers and coordinators -----------------------------------------------------------------

    def _worker(self) -> Member:
        return self._rng.choice(self._fleet.workers)

    async def _restart_after(self, member: Member, number: int, seconds: float) -> str:
        self.ended.add(member.name)
        await (member.kill() if number == signal.SIGKILL else member.terminate())
        await asyncio.sleep(seconds)
        member.start()
        self.ended.discard(member.name)
        return member.name

    async def _freeze(self, member: Member, seconds: float) -> str:
        member.signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        member.signal(signal.SIGCONT)
        return member.name

    async def _worker_killed(self) -> str:
        return await self._restart_after(self._worker(), signal.SIGKILL, self._rng.uniform(0, 2))

    async def _worker_away(self) -> str:
        timings = self._fleet.timings
        seconds = timings.lease_s + timings.lost_after_s + self._rng.uniform(2, 5)
        return await self._restart_after(self._worker(), signal.SIGKILL, seconds)

    async def _worker_frozen_briefly(self) -> str:
        return await self._freeze(self._worker(), self._rng.uniform(0.3, 0.9) * self._fleet.timings.lease_s)

    async def _worker_frozen_long(self) -> str:
        timings = self._fleet.timings
        seconds = timings.lease_s + timings.lost_after_s + self._rng.uniform(2, 5)
        return await self._freeze(self._worker(), seconds)

    async def _worker_rolled(self) -> str:
        return await self._restart_after(self._worker(), signal.SIGTERM, 0)

    async def _worker_drained(self) -> str:
        worker = self._worker()
        coordinator = self._rng.choice(self._fleet.coordinators)
        async with httpx.AsyncClient(trust_env=False) as http:
            try:
                url = f"{coordinator.url}/v1/fleet/workers/{worker.id}/drain"
                (await http.post(url, json={}, timeout=10)).raise_for_status()
            except httpx.HTTPError as error:  # another fault hit the fleet too: then only restart it
                progress(f"not drained: {error!r}")
        await asyncio.sleep(self._rng.uniform(2, 5))
        return await self._restart_after(worker, signal.SIGTERM, 0)

    async def _coordinator_killed(self) -> str:
        coordinator = self._rng.choice(self._fleet.coordinators)
        return await self._restart_after(coordinator, signal.SIGKILL, self._rng.uniform(0, 3))

    # --- Redis and sandboxes ----------------------------------------------------------------------

    async def _redis_killed(self) -> str:
        await asyncio.to_thread(self._fleet.redis.kill)
        await asyncio.sleep(self._rng.uniform(0, 4))
        await asyncio.to_thread(self._fleet.redis.start)
        return "redis"

    async def _redis_frozen(self) -> str:
        self._fleet.redis.signal(signal.SIGSTOP)
        await asyncio.sleep(self._rng.uniform(1, 8))
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
        chosen = self._rng.sample(sandboxes, min(len(sandboxes), SANDBOXES_REMOVED))
        await asyncio.to_thread(docker_lenient, "rm", "-f", *(f"sandlot-{sandbox}" for sandbox in chosen))
        return ", ".join(chosen)

    # --- healing ----------------------------------------------------------------------------------

    async def _wait_healed(self) -> float:
        """Seconds until all members are ready and a new session works at every coordinator."""
        began = time.monotonic()
        async with httpx.AsyncClient(trust_env=False) as http:
            while (spent := time.monotonic() - began) <= HEALED_WITHIN_S:
                ready = [await member.is_ready(http) for member in self._fleet.members]
                if all(ready) and await self._sessions_work():
                    return time.monotonic() - began
                await asyncio.sleep(0.2)
        return spent

    async def _sessions_work(self) -> bool:
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
