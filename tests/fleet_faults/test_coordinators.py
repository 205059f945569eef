"""A coordinator dies, or is cut off from a worker: sessions go on without it, and nothing is replaced."""

from __future__ import annotations

import asyncio
import time

import pytest

from sandlot import AsyncClient, AsyncSession, errors
from sandlot.domain.ids import new_exec_id
from sandlot.fleet.directory import WorkerState
from tests.faults.invariants import counted, times_run, told
from tests.faults.rig import created_at_last, eventually
from tests.fleet_faults.healing import healing
from tests.fleet_faults.network import Cut, as_root, cut_off
from tests.fleet_faults.rig import Fleet, Member

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]
# Of a coordinator that finds nobody there, however it finds out.
ANSWER_WITHIN_S = 45.0


async def test_killed(fleet: Fleet) -> None:
    """Fault 11: data goes on straight and through the other one; creates through it fail, and harm nothing."""
    first = fleet.coordinators[0]
    async with fleet.client() as straight, fleet.client(straight=False) as proxied, fleet.client(1) as other:
        session = await straight.create(thread="orphan")
        await proxied.get(session.id)
        waiting = asyncio.create_task(session.run(counted("straight", 3), exec_id="straight"))
        exec_id = new_exec_id()
        passing = asyncio.create_task(
            (await proxied.get(session.id)).run(counted(exec_id, 3), exec_id=exec_id)
        )
        await asyncio.sleep(0.5)
        await straight.get(session.id)  # a fresh token: nobody is there to renew it for a while
        await first.kill()
        assert (await session.run("echo straight")).output == "straight\n"
        assert (await waiting).output == "done straight\n"
        (cut,) = await asyncio.gather(passing, return_exceptions=True)
        assert isinstance(cut, BaseException), cut
        assert told(cut).may_have_executed or told(cut).retryable, cut
        with pytest.raises(errors.Unavailable) as refused:
            await straight.create(thread="new")
        assert told(refused.value).retryable
        assert not refused.value.may_have_executed
        # Through the other one everything is there: the session, its results, new sessions.
        same = await other.thread("orphan")
        assert same.id == session.id
        assert (await (await same.exec(exec_id)).wait(timeout_s=10)).output == f"done {exec_id}\n"
        assert await times_run(same, exec_id) == 1
        new = await other.thread("new")
        with healing("coordinator kill -9 and started again: it creates"):
            await first.start()
            assert (await straight.thread("new")).id == new.id
            third = await straight.create()
        assert (await session.run("echo again")).output == "again\n"
        for one in (session, new, third):
            await one.delete()
    await fleet.settle()


@as_root
@pytest.mark.parametrize("how", Cut)
async def test_cut_off_from_a_worker(fleet: Fleet, how: Cut) -> None:
    """Faults 12, 22: for longer than a worker may be silent. It is not, to the directory, and keeps its sessions.
    Packets that vanish and packets that are refused come to the same, later or sooner.
    """
    first = fleet.coordinators[0]
    async with (
        fleet.client() as straight,
        fleet.client(straight=False) as proxied,
        fleet.client(1, straight=False) as other,
    ):
        session = await straight.create(thread="behind")
        worker = fleet.worker_of(session)
        behind = await proxied.get(session.id)
        assert (await behind.run("echo before")).output == "before\n"
        with cut_off(first, worker.port, how=how):
            began = time.monotonic()
            asked = asyncio.create_task(behind.run(counted("behind"), exec_id="behind"))
            refused = asyncio.create_task(refusal(behind))
            async with asyncio.timeout(ANSWER_WITHIN_S):
                created = [await created_at_last(proxied, certain=False) for _ in range(3)]
            assert worker not in map(fleet.worker_of, created)
            while time.monotonic() - began < fleet.timings.lease_s + fleet.timings.lost_after_s + 1:
                assert (await session.run("echo on")).output == "on\n"
                same = await other.thread("behind")
                assert (same.id, same.generation, same.state) == (session.id, 1, "active")
                assert (await same.run("echo on")).output == "on\n"
                assert await state_of(fleet, worker) is WorkerState.ALIVE
                await asyncio.sleep(0.5)
            async with asyncio.timeout(ANSWER_WITHIN_S):
                error = await refused
            assert error.retryable or error.may_have_executed
            assert isinstance(error, errors.Unavailable | errors.LinkInterrupted)
        with healing(f"coordinator cut off from a worker ({how.name.lower()}), healed: it proxies again"):

            async def works() -> bool:
                try:
                    return (await behind.run("echo healed")).output == "healed\n"
                except errors.SandlotError as error:
                    told(error)
                    return False

            await eventually(works, 30, "the coordinator reaches the worker again")
        # What was asked meanwhile was done once or not at all, and whoever asked knows which.
        (answer,) = await asyncio.gather(asked, return_exceptions=True)
        if isinstance(answer, BaseException):
            assert told(answer).may_have_executed or not await times_run(session, "behind")
        else:
            assert await times_run(session, "behind") == 1
        for one in (session, *created):
            await one.delete()
    await fleet.settle()


async def refusal(session: AsyncSession) -> errors.SandlotError:
    try:
        execs = await session.execs()
    except errors.SandlotError as error:
        return told(error)
    raise AssertionError(f"it came through: {execs}")


async def state_of(fleet: Fleet, worker: Member) -> WorkerState:
    directory = fleet.directory()
    try:
        (found,) = [status for status in await directory.workers() if status.at.id == worker.owner]
        return found.at.state
    finally:
        await directory.close()


async def test_of_two_with_one_thread(fleet: Fleet) -> None:
    """Whichever is asked: what one creates, changes or deletes, the other knows at once."""
    async with fleet.client() as one, fleet.client(1) as two:
        session = await one.create(thread="shared")
        assert (await two.thread("shared")).id == session.id
        await (await two.get(session.id)).update(metadata={"by": "two"})
        assert (await one.get(session.id)).info.metadata == {"by": "two"}
        await (await two.get(session.id)).delete()
        with pytest.raises(errors.SessionEnded):
            await one.get(session.id)
        with pytest.raises(errors.NotFound):
            await session.run("echo still?")
        successor = await one.thread("shared")
        assert successor.id != session.id
        await successor.delete()
        known = await listed(one), await listed(two)
        assert known[0] == known[1]
        assert successor.id not in known[0]


async def listed(client: AsyncClient) -> list[str]:
    return [session.id async for session in client.sessions()]
