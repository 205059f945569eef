"""The hostile agents: their kinds, the loss report that each must get, and a crowd that attacks.

The program is that of tests/docker. It replaces the agent, behaves well until its first command
comes, and then does what its name says, as fast as its sandbox allows.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.attacks.server import PROGRAMS
from bench.rig import IMAGE, progress
from sandlot import AsyncClient, AsyncSession
from sandlot.domain.errors import SandlotError
from sandlot.domain.session import SessionState

PROGRAM = Path(__file__).parents[2] / "tests" / "docker" / "inside" / "hostile_agent.py"
CONCURRENT_CREATES = 4
ABUSE = "protocol abuse"
BROKEN = "the agent broke the protocol"
# Seconds from a culprit's first command to its quarantine.
CUT_OFF_WITHIN_S = 20.0


@dataclass(frozen=True)
class Attack:
    """One kind of attack.

    ``report`` is in the loss report's reason. None: the attack breaks no rule, so it is only slowed
    down.
    """

    name: str
    behaviour: str
    report: str | None


ATTACKS = {
    attack.name: attack
    for attack in (
        Attack("pings", "then flood of pings", ABUSE),
        Attack("streams", "then flood of streams", ABUSE),
        Attack("stray-data", "then flood for a stream that has ended", ABUSE),
        Attack("connections", "then flood of connections", ABUSE),
        Attack("garbage", "then garbage", BROKEN),
        Attack("oversize", "then oversize", BROKEN),
        Attack("window", "then more than the credit", BROKEN),
        Attack("endless-frame", "then a frame that never ends", None),
        Attack("pongs", "then flood of pongs", ABUSE),
        Attack("empty-credit", "then flood of empty credit", ABUSE),
    )
}


def write_registry(folder: Path) -> None:
    """Writes one environment and its program for each attack, with an empty pool."""
    (folder / "environments").mkdir(parents=True)
    (folder / PROGRAMS).mkdir()
    for attack in ATTACKS.values():
        recipe = (
            f"name: hostile-{attack.name}\ndescription: {attack.behaviour}\n"
            f"image: {IMAGE}\ntier: runc\npool: {{size: 0, min: 0, max: 0}}\n"
        )
        (folder / "environments" / f"{attack.name}.yaml").write_text(recipe)
        program = folder / PROGRAMS / f"hostile-{attack.name}"
        program.write_text(
            PROGRAM.read_text().replace('BEHAVIOUR = "silence"', f"BEHAVIOUR = {attack.behaviour!r}")
        )
        program.chmod(0o555)


@dataclass
class Outcome:
    let_loose: int = 0
    quarantined: int = 0
    reports: Counter[str] = field(default_factory=Counter)  # states and loss reasons, with counts
    slowest_s: float = 0.0


class Crowd:
    """Culprits, created before the measurement so that no container starts during it."""

    def __init__(self, attack: Attack, members: list[AsyncSession]) -> None:
        self._attack = attack
        self._members = members

    async def attack(self, seconds: float, per_second: float) -> Outcome:
        """Starts the culprits in turn, ``per_second``, whatever happened to those before."""
        outcome = Outcome()
        running: list[asyncio.Task[None]] = []
        end = time.monotonic() + seconds
        for session in self._members:
            if time.monotonic() >= end:
                break
            outcome.let_loose += 1
            running.append(asyncio.create_task(self._start_attack(session, outcome, end)))
            await asyncio.sleep(1 / per_second)
        await asyncio.sleep(max(0.0, end - time.monotonic()))
        await asyncio.gather(*running)
        return outcome

    async def _start_attack(self, session: AsyncSession, outcome: Outcome, end: float) -> None:
        began = time.monotonic()
        command = asyncio.create_task(session.run("true", timeout_s=600))
        try:
            while True:
                await asyncio.sleep(0.1)
                now = time.monotonic()
                if self._attack.report is None:
                    if now >= end:
                        outcome.reports[f"{(await session.refresh()).state.value}"] += 1
                        return
                    continue
                if (await session.refresh()).state is SessionState.LOST:
                    break
                if now - began > CUT_OFF_WITHIN_S:
                    outcome.reports[f"{session.state.value}, not quarantined"] += 1
                    return
        finally:
            command.cancel()
            await asyncio.gather(command, return_exceptions=True)
        outcome.slowest_s = max(outcome.slowest_s, now - began)
        reason = session.info.loss.reason if session.info.loss else "no report"
        outcome.quarantined += self._attack.report in reason
        outcome.reports[re.sub(r"\d+$", "…", reason)] += 1


@asynccontextmanager
async def crowd(client: AsyncClient, attack: Attack, count: int) -> AsyncIterator[Crowd]:
    slots = asyncio.Semaphore(CONCURRENT_CREATES)

    async def make() -> AsyncSession:
        async with slots:
            return await client.create(environment=f"hostile-{attack.name}")

    async def end(session: AsyncSession) -> None:
        async with slots:
            try:
                await session.delete()
            except SandlotError as error:
                progress(f"delete: {error!r}")

    members = await asyncio.gather(*(make() for _ in range(count)))
    try:
        yield Crowd(attack, members)
    finally:
        await asyncio.gather(*(end(session) for session in members))
