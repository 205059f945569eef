"""A worker dies, freezes, comes back, or comes twice: what it held is adopted or reported, and commanded by one."""

from __future__ import annotations

import asyncio
import time

import httpx
import pytest

from sandlot import AsyncSession, errors
from sandlot.domain.callers.principal import OWNER
from sandlot.domain.ids import new_exec_id
from tests.faults.invariants import counted, times_run, told, until_told
from tests.faults.rig import created_at_last
from tests.fleet_faults.healing import healing
from tests.fleet_faults.member import Member
from tests.fleet_faults.network import as_root, cut_off
from tests.fleet_faults.rig import KEY, Fleet
from tests.fleet_faults.waiting import begun, given_up, removed, works_again

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]


async def test_killed_and_back(fleet: Fleet) -> None:
    """Fault 12: its sessions are adopted, under their ids; every exec has its one result."""
    async with fleet.client() as client, fleet.client(1, straight=False) as other:
        session = await created_at_last(client, thread="back", metadata={"for": "keeping"}, certain=False)
        await session.files.write("kept.txt", "here")
        worker = fleet.worker_of(session)
        exec_id = new_exec_id()
        await session.start(counted(exec_id, 3), exec_id=exec_id)
        await worker.kill()
        elsewhere = await created_at_last(other, thread="meanwhile", certain=False)
        assert fleet.worker_of(elsewhere) is not worker
        with healing("worker kill -9 and started again: its session runs commands"):
            await worker.start()
            await works_again(lambda: session.run("cat kept.txt"), "here")
        result = await (await session.exec(exec_id)).wait(timeout_s=60)
        assert result.output == f"done {exec_id}\n"
        assert await times_run(session, exec_id) == 1
        again = await created_at_last(other, thread="back", certain=False)
        assert (again.id, again.generation, again.info.sandbox_id) == (session.id, 1, session.info.sandbox_id)
        assert again.info.metadata == {"for": "keeping"}
        for one in (again, elsewhere):
            await one.delete()
    await fleet.settle()


async def test_killed_for_good(fleet: Fleet) -> None:
    """Fault 12: after the grace its sessions are lost, and say so; another worker takes them over when asked to."""
    async with fleet.client() as client, fleet.client(1, straight=False) as other:
        kept = await created_at_last(
            client, thread="kept", metadata={"for": "keeping"}, env={"WHO": "me"}, certain=False
        )
        worker = fleet.worker_of(kept)
        dropped = await fleet.session_on(worker, client)
        old = {kept.info.sandbox_id, dropped.info.sandbox_id}
        running = asyncio.create_task(kept.run(until_told("once")))
        await begun(kept, "once")
        await worker.kill()
        with healing("worker kill -9 for good: its session is reported lost"):
            lost = await given_up(client, "kept")
        (answer,) = await asyncio.gather(running, return_exceptions=True)
        assert isinstance(answer, BaseException), answer
        assert told(answer).may_have_executed, answer
        assert lost.id == kept.id
        assert lost.info.loss is not None
        assert worker.owner in lost.info.loss.reason
        with pytest.raises(errors.SandboxLost) as refused:
            await kept.run("echo more")
        assert refused.value.details["loss"]["generation"] == 1
        assert not told(refused.value).may_have_executed
        assert (await other.get(kept.id)).state == "lost"
        with healing("a lost session on another worker, from being asked to its first command"):
            await lost.recreate()
            assert (await lost.run('echo "[$WHO]"; ls -A | wc -l')).ok
        assert (lost.id, lost.generation, lost.info.metadata) == (kept.id, 2, {"for": "keeping"})
        assert fleet.worker_of(lost) is not worker
        # What the report says is kept must be kept: variables are the dead worker's secret alone.
        variable_kept = (await lost.run('echo "[$WHO]"')).output == "[me]\n"
        assert ("environment variables" in refused.value.details["loss"]["kept"]) == variable_kept
        assert (await created_at_last(other, thread="kept", certain=False)).id == lost.id
        await other.service.delete_session(dropped.id)
        with pytest.raises(errors.NotFound):
            await client.get(dropped.id)
        # The machine comes back: what was taken over or deleted meanwhile is removed there.
        with healing("a given-up worker is back: what it lost is removed from its engine"):
            await worker.start()
            await removed(worker, old)
        assert (await lost.run("echo on")).output == "on\n"
        with pytest.raises(errors.NotFound):
            await client.get(dropped.id)
        await lost.delete()
    await fleet.settle()


async def test_frozen_beyond_its_lease(fleet: Fleet) -> None:
    """Fault 9: late, and not replaced; it wakes and goes on with what it was asked."""
    async with fleet.client() as client, fleet.client(1) as other:
        session = await created_at_last(client, thread="dozing", certain=False)
        await session.run("true")
        worker = fleet.worker_of(session)
        worker.freeze()
        try:
            asked = asyncio.create_task(session.run(counted("asleep")))
            await asyncio.sleep(fleet.timings.lease_s + 1)
            with pytest.raises(errors.Unavailable) as late:
                await other.thread("dozing")
            assert told(late.value).retry_after_s is not None
            # The others go on.
            elsewhere = await created_at_last(other, certain=False)
            assert (await elsewhere.run("echo ok")).output == "ok\n"
            await elsewhere.delete()
        finally:
            worker.thaw()
        with healing("worker frozen beyond its lease, thawed: the call that waited is answered"):
            assert (await asked).output == "done asleep\n"
        assert await times_run(session, "asleep") == 1
        assert (
            await (await created_at_last(other, thread="dozing", certain=False)).refresh()
        ).generation == 1
        await session.delete()
    await fleet.settle()


async def test_frozen_until_its_session_went_elsewhere(fleet: Fleet) -> None:
    """Fault 9: what it wakes up with is not its own any more. It obeys nobody there, and removes it."""
    async with fleet.client() as client, fleet.client(1, straight=False) as other:
        session = await created_at_last(client, thread="frozen", certain=False)
        old = session.info.sandbox_id
        worker = fleet.worker_of(session)
        worker.freeze()
        try:
            await given_up(other, "frozen")
            again = await other.thread("frozen", recreate_lost=True)
            assert (again.id, again.generation) == (session.id, 2)
            assert fleet.worker_of(again) is not worker
            assert (await again.run(counted("new"))).output == "done new\n"
            # Accepted by the kernel while it sleeps, with a token of the first generation: read when it wakes.
            token = fleet.tokens.for_session(OWNER, session.info, worker.url, worker.owner).token
            asked = asyncio.create_task(ask_straight(worker, session, token))
            await asyncio.sleep(0.5)
        finally:
            worker.thaw()
        with healing("worker frozen until its session went elsewhere, thawed: the old sandbox is removed"):
            answer = await asked
            assert answer.status_code >= 400, answer.text
            assert not answer.json()["may_have_executed"], answer.text
            await removed(worker, {old})
        assert (await again.run("cat ran-new | wc -l")).output == "1\n"
        # The client that never heard of it comes to the new sandbox as well.
        same = await created_at_last(client, thread="frozen", certain=False)
        assert same.info.sandbox_id == again.info.sandbox_id
        await again.delete()
    await fleet.settle()


async def ask_straight(worker: Member, session: AsyncSession, token: str) -> httpx.Response:
    async with httpx.AsyncClient(timeout=60) as http:
        return await http.post(
            f"{worker.url}/v1/sessions/{session.id}/exec",
            json={"command": "echo obeyed"},
            headers={"Authorization": f"Bearer {token}"},
        )


@as_root
async def test_cut_off_from_the_directory_until_its_session_went_elsewhere(fleet: Fleet) -> None:
    """It cannot know, and serves on: but whatever let anybody command the old sandbox is over before the new one
    is there.
    """
    async with fleet.client() as client, fleet.client(1, straight=False) as other:
        session = await created_at_last(client, thread="cut", certain=False)
        old = session.info.sandbox_id
        worker = fleet.worker_of(session)
        with cut_off(worker, fleet.redis.port):
            # The last moments in which somebody is sent there: the coordinator takes it for alive.
            until = time.monotonic() + fleet.timings.lease_s / 2
            token = None
            while token is None or time.monotonic() < until:
                token = await straight_token(fleet, session) or token
                await asyncio.sleep(0.1)
            await given_up(other, "cut")
            again = await other.thread("cut", recreate_lost=True)
            assert (again.id, again.generation) == (session.id, 2)
            answer = await ask_straight(worker, session, token)
            assert answer.status_code >= 400, answer.text
            assert not answer.json()["may_have_executed"]
        with healing(
            "worker cut off from Redis until its session went elsewhere, healed: the old sandbox is removed"
        ):
            await removed(worker, {old})
        same = await created_at_last(client, thread="cut", certain=False)
        assert same.info.sandbox_id == again.info.sandbox_id
        await again.delete()
    await fleet.settle()


async def straight_token(fleet: Fleet, session: AsyncSession) -> str | None:
    """As a coordinator gives it out now; none where it takes the worker for silent."""
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {KEY}"}, timeout=30) as http:
        answer = await http.get(f"{fleet.coordinators[0].url}/v1/sessions/{session.id}")
    access = answer.json().get("access")
    return None if access is None else str(access["token"])


@pytest.mark.parametrize("same_folder", [True, False], ids=["same folder", "another folder"])
async def test_two_with_one_id(fleet: Fleet, same_folder: bool) -> None:
    """Fault 10: the second refuses to start and says why; the first notices nothing."""
    first = fleet.workers[0]
    second = fleet.new_worker()
    folder = second.data_dir
    second.environ["SANDLOT_WORKER_ID"] = first.owner
    if same_folder:
        second.environ["SANDLOT_DATA_DIR"] = str(first.data_dir)
    try:
        async with fleet.client() as client:
            session = await fleet.session_on(first, client)
            await second.start(ready=False)
            assert await second.wait_ended(60) != 0
            log = second.log.read_text()
            assert "another" in log.lower(), log
            assert "Traceback" not in log, log
            assert (await session.run("echo ok")).output == "ok\n"
            assert session.info.sandbox_id in first.containers()
            await session.delete()
    finally:
        second.data_dir = folder
        await second.clean()
    await fleet.settle()
