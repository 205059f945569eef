"""A coordinator dies, or is cut off from a worker: sessions go on without it, and nothing is replaced."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from pathlib import Path

import httpx
import pytest

from sandlot import AsyncClient, AsyncSession, errors
from sandlot.domain.execution import MAX_OUTPUT_LIMIT_BYTES
from sandlot.domain.ids import new_exec_id
from sandlot.fleet.directory.contract import WorkerState
from sandlot.testing.eventually import eventually
from sandlot.wire.packed import PACKED
from tests.faults.invariants import TELL, counted, times_run, told, until_told
from tests.faults.rig import created_at_last
from tests.fleet_faults.healing import healing
from tests.fleet_faults.member import Member
from tests.fleet_faults.network import Cut, as_root, cut_off
from tests.fleet_faults.rig import KEY, Fleet
from tests.fleet_faults.waiting import begun, works_again

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]
# Of a coordinator that finds nobody there, however it finds out.
ANSWER_WITHIN_S = 45.0


async def test_killed(fleet: Fleet) -> None:
    """Fault 11: data goes on straight and through the other one; creates through it fail, and harm nothing."""
    first = fleet.coordinators[0]
    async with fleet.client() as straight, fleet.client(straight=False) as proxied, fleet.client(1) as other:
        session = await created_at_last(straight, thread="orphan", certain=False)
        await proxied.get(session.id)
        waiting = asyncio.create_task(session.run(until_told("straight"), exec_id="straight"))
        exec_id = new_exec_id()
        passing = asyncio.create_task(
            (await proxied.get(session.id)).run(until_told(exec_id), exec_id=exec_id)
        )
        await begun(session, "straight")
        await begun(session, exec_id)
        await straight.get(session.id)  # a fresh token: nobody is there to renew it for a while
        await first.kill()
        assert (await session.run(f"{TELL}; echo straight")).output == "straight\n"
        assert (await waiting).output == "done straight\n"
        (cut,) = await asyncio.gather(passing, return_exceptions=True)
        assert isinstance(cut, errors.LinkInterrupted), cut
        # It had begun, and this one alone can say how to ask for it.
        assert (told(cut).may_have_executed, cut.details["exec_id"]) == (True, exec_id)
        with pytest.raises(errors.Unavailable) as refused:
            await straight.create(thread="new")
        assert told(refused.value).retryable
        assert not refused.value.may_have_executed
        # Through the other one everything is there: the session, its results, new sessions.
        same = await created_at_last(other, thread="orphan", certain=False)
        assert same.id == session.id
        assert (await (await same.exec(exec_id)).wait(timeout_s=60)).output == f"done {exec_id}\n"
        assert await times_run(same, exec_id) == 1
        new = await created_at_last(other, thread="new", certain=False)
        with healing("coordinator kill -9 and started again: it creates"):
            await first.start()
            assert (await created_at_last(straight, thread="new", certain=False)).id == new.id
            third = await created_at_last(straight, certain=False)
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
        session = await created_at_last(straight, thread="behind", certain=False)
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
                same = await created_at_last(other, thread="behind", certain=False)
                assert (same.id, same.generation, same.state) == (session.id, 1, "active")
                assert (await same.run("echo on")).output == "on\n"
                # One that is held up for a moment is late once; one that does not report stays so.
                await eventually(partial(is_alive, fleet, worker), 5, "it reports")
                await asyncio.sleep(0.5)
            async with asyncio.timeout(ANSWER_WITHIN_S):
                error = await refused
            assert error.retryable
            assert isinstance(error, errors.Unavailable | errors.LinkInterrupted)
        with healing(f"coordinator cut off from a worker ({how.name.lower()}), healed: it proxies again"):
            await works_again(lambda: behind.run("echo healed"), "healed\n")
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


async def is_alive(fleet: Fleet, worker: Member) -> bool:
    async with fleet.directory() as directory:
        (found,) = [status for status in await directory.workers() if status.ref.id == worker.owner]
        return found.ref.state is WorkerState.ALIVE


async def test_of_two_with_one_thread(fleet: Fleet) -> None:
    """Whichever is asked: what one creates, changes or deletes, the other knows at once."""
    async with fleet.client() as one, fleet.client(1) as two:
        session = await created_at_last(one, thread="shared", certain=False)
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


@pytest.mark.alone  # it measures memory
@pytest.mark.parametrize("accept", [f"application/json, {PACKED}", "application/json"])
async def test_large_results_at_once(fleet: Fleet, accept: str) -> None:
    """What sandboxes print through a coordinator, all at once, is not its end: deploy/compose gives it 512 MiB.

    Clients that are told to come back do so.
    """
    coordinator = fleet.coordinators[0]
    asked = {"command": "head -c 16M /dev/zero", "output_limit": MAX_OUTPUT_LIMIT_BYTES, "exec_id": "large"}
    headers = {"Accept": accept, "Authorization": f"Bearer {KEY}"}

    async def run(http: httpx.AsyncClient, session: AsyncSession) -> int:
        while True:
            size = 0
            async with http.stream("POST", f"/v1/sessions/{session.id}/exec", json=asked) as answer:
                # The same exec id: it does not run again. 503: its worker was too busy to say that it is there.
                if answer.status_code in (429, 503):
                    await asyncio.sleep(0.5)
                    continue
                answer.raise_for_status()
                async for piece in answer.aiter_raw():
                    size += len(piece)
            return size

    async with (
        fleet.client(straight=False) as client,
        httpx.AsyncClient(base_url=coordinator.url, headers=headers, timeout=60) as http,
    ):
        sessions = [await created_at_last(client, certain=False) for _ in range(6)]
        begin_peak(coordinator.pid)
        before = peak_mib(coordinator.pid)
        sizes = await asyncio.gather(*(run(http, session) for session in sessions))
        # Zero bytes, as they are or as six characters each, by their channel and in their order.
        expected = 2 * MAX_OUTPUT_LIMIT_BYTES * (1 if PACKED in accept else 6)
        assert all(0 <= size - expected < 4096 for size in sizes), sizes
        grown = peak_mib(coordinator.pid) - before
        print(f"six results of 16 MiB at once: a coordinator grew by {grown} MiB")
        assert grown < 384
        for session in sessions:
            await session.delete()
    await fleet.settle()


def begin_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def peak_mib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) // 1024
