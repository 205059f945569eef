"""A fleet is upgraded worker by worker, under its users: two versions serve side by side, and nothing is lost."""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from pathlib import Path

import pytest

from sandlot import AsyncSession, errors
from sandlot.testing.eventually import eventually
from tests.faults.invariants import counted
from tests.faults.rig import created_at_last
from tests.fleet_faults.healing import healing
from tests.fleet_faults.member import SANDLOT, Member
from tests.fleet_faults.rig import Fleet
from tests.fleet_faults.waiting import works_again

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]
NEXT = "99.1.0"
NEXT_WORKER = [sys.executable, str(Path(__file__).parent / "other_version.py"), NEXT, "worker"]


async def versions(fleet: Fleet) -> dict[str, str]:
    async with fleet.directory() as directory:
        return {status.ref.id: status.version for status in await directory.workers()}


async def drain(fleet: Fleet, worker: Member) -> None:
    """As an operator does it: by the command line, at a coordinator."""
    coordinator = fleet.coordinators[0]
    await sandlot(coordinator, "--url", coordinator.url, "fleet", "drain", worker.owner)


async def sandlot(member: Member, *words: str) -> None:
    """Run a command with the settings of a member."""
    running = await asyncio.create_subprocess_exec(
        *(*SANDLOT, *words),
        env=member.environ,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await running.communicate()
    assert running.returncode == 0, output.decode()


@pytest.mark.timeout(400)  # three workers, one after the other
async def test_rolling_upgrade(fleet: Fleet) -> None:
    """Fault 54: drain, stop, start as the next version, one worker after the other."""
    async with fleet.client() as client, fleet.client(1, straight=False) as proxied:
        sessions: list[AsyncSession] = []
        for number, worker in enumerate(fleet.workers):
            session = await fleet.session_on(worker, client)
            await session.files.write("kept.txt", f"of {number}")
            sessions.append(session)
        old = set((await versions(fleet)).values())
        for number, worker in enumerate(fleet.workers):
            session = sessions[number]
            await drain(fleet, worker)
            await eventually(partial(is_not_ready, worker), 30, "it drains")
            # What it has goes on, what is new goes elsewhere.
            assert (await session.run("cat kept.txt")).output == f"of {number}"
            new = await created_at_last(proxied, certain=False)
            assert fleet.worker_of(new) is not worker
            await new.delete()
            exec_id = f"across-{number}"
            await session.start(counted(exec_id, 2), exec_id=exec_id)
            with healing(
                f"worker {number + 1} of 3 drained, stopped and started as another version: commands"
            ):
                assert await worker.terminate(60) == 0
                assert session.info.sandbox_id in worker.containers()
                await worker.start(NEXT_WORKER)
                await works_again(partial(session.run, "cat kept.txt"), f"of {number}")
            result = await (await session.exec(exec_id)).wait(timeout_s=60)
            assert result.output == f"done {exec_id}\n"
            now = await versions(fleet)
            assert now[worker.owner] == NEXT
            assert set(now.values()) == ({NEXT} if worker is fleet.workers[-1] else {NEXT, *old})
            # Both versions are given new sessions.
            both = await fleet.session_on(worker, proxied)
            assert (await both.run("echo new")).output == "new\n"
            await both.delete()
        for number, session in enumerate(sessions):
            same = await proxied.get(session.id)
            assert (same.generation, same.info.sandbox_id) == (1, session.info.sandbox_id)
            await session.delete()
            with pytest.raises(errors.NotFound):
                await same.run(f"echo {number}")
    await fleet.settle()


async def test_drained_on_its_own_machine(fleet: Fleet) -> None:
    """With the worker's settings and its data folder, and without a key that signs anything."""
    worker = fleet.workers[0]
    await sandlot(worker, "worker", "drain")
    await eventually(partial(is_not_ready, worker), 30, "it drains")
    await sandlot(worker, "worker", "undrain")
    await eventually(worker.is_ready, 30, "it takes sessions again")
    await fleet.settle()


async def is_not_ready(worker: Member) -> bool:
    return not await worker.is_ready()
