"""What tests wait for while something is wrong with the fleet; every refusal on the way must tell."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from sandlot import AsyncClient, AsyncSession, Result, errors
from sandlot.testing.eventually import eventually
from tests.faults.invariants import times_run, told
from tests.fleet_faults.member import Member

# Lease and grace are over, and somebody has looked.
GIVEN_UP_WITHIN_S = 60.0
BEGUN_WITHIN_S = 30.0
# Until a session answers after a fault, and until an engine that has much to do has removed a sandbox.
AGAIN_WITHIN_S = 60.0
REMOVED_WITHIN_S = 100.0


async def given_up(client: AsyncClient, thread: str) -> AsyncSession:
    """Asked until its worker is gone: late until then, which is told, and never another sandbox in silence."""
    async with asyncio.timeout(GIVEN_UP_WITHIN_S):
        while True:
            try:
                session = await client.thread(thread)
                if session.state == "lost":
                    return session
            except errors.SandlotError as error:
                assert isinstance(told(error), errors.Unavailable | errors.LinkInterrupted)
                assert error.retryable
            await asyncio.sleep(0.3)


async def removed(worker: Member, sandbox_ids: set[str | None], seconds: float = REMOVED_WITHIN_S) -> None:
    async def gone() -> bool:
        return not sandbox_ids & (await asyncio.to_thread(worker.containers)).keys()

    await eventually(gone, seconds, lambda: f"{sandbox_ids} are removed, of {worker.containers()}")


async def begun(session: AsyncSession, name: str) -> None:
    """A ``counted`` command that somebody else has given."""

    async def ran() -> bool:
        return await times_run(session, name) == 1

    await eventually(ran, BEGUN_WITHIN_S, f"the command {name} has begun")


async def works_again(
    run: Callable[[], Awaitable[Result]], output: str, seconds: float = AGAIN_WITHIN_S
) -> None:
    async def works() -> bool:
        try:
            return (await run()).output == output
        except errors.SandlotError as error:
            told(error)
            return False

    await eventually(works, seconds, f"the session answers {output!r}")
