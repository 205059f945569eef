"""The server dies or is stopped, at any moment: nothing is lost, nothing runs twice, nothing stays behind."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
import time
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from sandlot import AsyncClient, AsyncSession, errors
from sandlot.domain.execution import Exited, Output
from sandlot.domain.ids import new_exec_id
from sandlot.testing.eventually import eventually
from sandlot.worker.failpoints import Step
from tests.faults.invariants import counted, times_run, told
from tests.faults.rig import HERE, ServerProcess, running

pytestmark = [pytest.mark.docker, pytest.mark.slow]
DRAIN_S = 30
AWAY_S = 6  # as one that is upgraded; clients that wait for a command are more patient than that
# The loss has a test of its own; ``tests/workspaces/deaths.py`` and others have the rest.
OF_CREATES_AND_DELETES = ("sandbox", "session", "end", "adopted")
DYING = [sys.executable, str(HERE / "dying_server.py")]


@pytest_asyncio.fixture
async def server() -> AsyncIterator[ServerProcess]:
    """For each test: what an earlier death left undone must not be finished by the next one's start."""
    process = ServerProcess()
    try:
        await process.start()
        yield process
    finally:
        await process.clean()


async def known(session: AsyncSession, exec_id: str) -> None:
    """Until the server has it: what is asked of one that is away never began, and is refused."""

    async def begun() -> bool:
        return any(summary.exec_id == exec_id for summary in await session.execs())

    await eventually(begun, 30, f"{exec_id} is known")


async def test_killed_with_twenty_execs_and_five_creates(server: ServerProcess) -> None:
    """Faults 1, 2, 4: every exec has one result, had by its id; every session is there; no orphan is."""
    async with server.client() as client:
        sessions = [await client.create(thread=f"t{i}") for i in range(4)]
        ids = {new_exec_id(): sessions[i % 4] for i in range(20)}
        for exec_id, session in ids.items():
            await session.start(counted(exec_id, 3), exec_id=exec_id)
        waiting = [
            asyncio.create_task(s.run(counted(f"w{i}", 3), exec_id=f"w{i}")) for i, s in enumerate(sessions)
        ]
        for i, session in enumerate(sessions):
            await known(session, f"w{i}")
        creating = [
            asyncio.create_task(client.create(thread=f"new{i}", idempotency_key=f"new{i}")) for i in range(5)
        ]
        await asyncio.sleep(0.05)
        await server.kill()
        await asyncio.sleep(AWAY_S)
        await server.start()
        began = time.monotonic()
        for i, answer in enumerate(await asyncio.gather(*waiting)):
            assert (answer.exit_code, answer.output) == (0, f"done w{i}\n")
        assert time.monotonic() - began < 40  # one that waits in vain does so for 90 s
        for exec_id, session in ids.items():
            status = await (await session.exec(exec_id)).status(wait_s=10)
            assert status.result is not None
            assert status.result.output == f"done {exec_id}\n".encode()
            assert await times_run(session, exec_id) == 1
        for i, session in enumerate(sessions):
            assert await times_run(session, f"w{i}") == 1
            assert (await client.get(session.id)).info.generation == 1
        for i, made in enumerate(await asyncio.gather(*creating, return_exceptions=True)):
            # Refused or done: asked again with its key, there is one session.
            again = await client.create(thread=f"new{i}", idempotency_key=f"new{i}")
            if isinstance(made, BaseException):
                assert told(made).retryable
            else:
                assert again.id == made.id
            assert (await client.thread(f"new{i}")).id == again.id
    await server.settle()


@pytest.mark.parametrize("step", [step for step in Step if step.startswith(OF_CREATES_AND_DELETES)])
async def test_dies_at_every_step(step: Step) -> None:
    """Faults 2-6: one loop over all named steps. The next start finishes or undoes what was begun."""
    server = ServerProcess()
    try:
        await server.start()
        async with server.client() as client:
            keeper = await client.create(thread="keeper", env={"WHO": "keeper"})
            await keeper.files.write("kept.txt", "still here")
            await server.terminate()
            # The pool's own sandbox is the first to pass the making steps; the session's is a later one.
            await server.start([*DYING, step.value], ready=False)
            began = time.monotonic()
            while server.process is not None and server.process.poll() is None:
                assert time.monotonic() - began < 90, f"never reached {step}"
                try:
                    session = await client.create(env={"WHO": "stranger"})
                    await session.delete()
                except errors.SandlotError:
                    await asyncio.sleep(0.1)
            assert await server.wait_ended() == -signal.SIGKILL
            await server.start()
            result = await keeper.run("cat kept.txt; echo; echo $WHO")
            assert result.output == "still here\nkeeper\n"
            # Whatever was half made for the stranger is nobody's pool: a new session sees none of it.
            fresh = await client.create()
            assert (await fresh.run('echo "[$WHO]"; ls -A /workspace | wc -l')).output == "[]\n0\n"
            await fresh.delete()
        await server.settle()
    finally:
        await server.clean()


async def test_dies_while_a_loss_is_recorded() -> None:
    server = ServerProcess()
    try:
        await server.start([*DYING, Step.LOSS_RECORDED.value])
        async with server.client() as client:
            session = await client.create(thread="t")
            server.docker("rm", "-f", server.container_of(session))
            assert await server.wait_ended() == -signal.SIGKILL
            await server.start()
            lost = await client.thread("t")
            assert (lost.id, lost.state) == (session.id, "lost")
            await lost.recreate()
            assert lost.generation == 2
            assert (await lost.run("echo new")).output == "new\n"
        await server.settle()
    finally:
        await server.clean()


async def test_sigterm_drains_and_keeps() -> None:
    """Fault 7: readiness goes at once, the process ends soon, commands go on, and their readers miss nothing (O2)."""
    server = ServerProcess(drain_timeout_s=str(DRAIN_S))
    try:
        await server.start()
        async with server.client() as client, httpx.AsyncClient(timeout=30) as http:
            await drained(server, client, http)
        await server.settle()
    finally:
        await server.clean()


async def drained(server: ServerProcess, client: AsyncClient, http: httpx.AsyncClient) -> None:
    session = await client.create(thread="t")
    await session.run("true")

    async def read() -> str:
        text = b""
        async for event in session.stream("for i in 1 2 3 4 5 6; do echo $i; sleep 2; done"):
            if isinstance(event, Output):
                text += event.data
            if isinstance(event, Exited):
                assert event.code == 0
        return text.decode()

    async def unready() -> bool:
        return (await http.get(f"{server.url}/ready")).status_code == 503

    # Longer than the server takes to go, and to come back.
    reading = asyncio.create_task(read())
    waiting = asyncio.create_task(session.run("sleep 12; echo slept"))
    await running(session, 2)
    began = time.monotonic()
    os.kill(server.pid, signal.SIGTERM)
    await eventually(unready, 5, "it is not ready any more")
    with pytest.raises(errors.Unavailable):
        await client.create(idempotency_key="while-stopping")
    assert await server.wait_ended() == 0
    # It waits neither for the commands nor until the time for transfers is over.
    assert time.monotonic() - began < DRAIN_S
    assert not waiting.done()
    assert session.info.sandbox_id in server.containers()
    await server.start()
    assert await reading == "1\n2\n3\n4\n5\n6\n"
    assert (await waiting).output == "slept\n"
    assert (await (await client.thread("t")).run("echo back")).output == "back\n"
    assert (await client.thread("t")).id == session.id


async def test_a_command_longer_than_the_drain_goes_on_without_the_server(server: ServerProcess) -> None:
    async with server.client() as client:
        session = await client.create(thread="t")
        await session.start(counted("long", 8), exec_id="long")
        waiting = asyncio.create_task(session.run(counted("waited", 8), exec_id="waited"))
        await known(session, "waited")
        assert await server.terminate() == 0
        assert "Traceback" not in server.log.read_text()
        await server.start()
        assert (await waiting).output == "done waited\n"
        assert await times_run(session, "waited") == 1
        result = await (await session.exec("long")).wait(timeout_s=40)
        assert result.output == "done long\n"
        assert await times_run(session, "long") == 1


async def test_two_servers_with_one_folder(server: ServerProcess) -> None:
    """Fault 10: the second refuses to start, and says why."""
    second = ServerProcess()
    second.environ |= {"SANDLOT_DATA_DIR": str(server.data_dir), "SANDLOT_WORKER_ID": server.owner}
    try:
        await second.start(ready=False)
        assert await second.wait_ended() != 0
        assert "Another worker is using the data folder" in second.log.read_text()
    finally:
        await second.clean()
    async with server.client() as client:
        assert (await (await client.create()).run("echo ok")).output == "ok\n"


async def test_frozen_and_thawed(server: ServerProcess) -> None:
    """A server that stood still for a while goes on: nothing expires at once, nothing is lost."""
    async with server.client() as client:
        session = await client.create(thread="t")
        os.kill(server.pid, signal.SIGSTOP)
        await asyncio.sleep(3)
        os.kill(server.pid, signal.SIGCONT)
        assert (await session.run("echo on")).output == "on\n"
    await server.settle()


async def test_out_of_file_descriptors(server: ServerProcess) -> None:
    """Fault 51: it sheds load and recovers."""
    async with server.client() as client:
        session = await client.create(thread="t")
        await session.run("true")
        open_now = len(os.listdir(f"/proc/{server.pid}/fd"))
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (open_now + 6, 4096))
        connections: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        try:
            while len(connections) < 30:
                connections += [await asyncio.open_connection("127.0.0.1", server.port)]
            await asyncio.sleep(0.5)
        finally:
            for _, writer in connections:
                writer.close()
            resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (1024, 4096))

        async def works() -> bool:
            try:
                async with AsyncClient(server.url) as fresh:
                    return (await (await fresh.thread("t")).run("echo ok")).output == "ok\n"
            except errors.SandlotError:
                return False

        await eventually(works, 30, "the server works again")
        async with AsyncClient(server.url) as fresh:
            assert (await fresh.thread("t")).id == session.id
    await server.settle()
