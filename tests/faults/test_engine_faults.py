"""The engine is restarted, killed, frozen, or loses a container's keeper; on an engine of the tests' own."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from sandlot import AsyncSession, errors
from sandlot.testing.eventually import eventually
from tests.faults.engine import OwnEngine
from tests.faults.invariants import counted, problem, times_run, told
from tests.faults.rig import ServerProcess, created_at_last

pytestmark = [pytest.mark.docker, pytest.mark.slow]
QUEUE_S = 4.0
# Within 3 s at rest; the rest is a loaded machine's part.
NOTICED_WITHIN_S = 10.0


@pytest.fixture(scope="module")
def engine() -> Iterator[OwnEngine]:
    engine = OwnEngine()
    try:
        engine.start()
        engine.load()
        yield engine
    finally:
        engine.clean()


@pytest_asyncio.fixture
async def server(engine: OwnEngine, slim_registry: Path) -> AsyncIterator[ServerProcess]:
    server = ServerProcess(
        docker_host=engine.host,
        registry=slim_registry,
        queue_timeout_s=str(QUEUE_S),
        pool_size="1",
        max_pool_size="1",
    )
    try:
        await server.start()
        # The first one is waited for until the image is prepared.
        async with server.client() as client:
            await (await created_at_last(client)).delete()
        yield server
    finally:
        await server.clean()


def has_ended(pid: int) -> bool:
    """Gone, or waiting for the machine's init to take note of it."""
    status = Path(f"/proc/{pid}/status")
    return not status.exists() or "State:\tZ" in status.read_text()


async def keep_running(session: AsyncSession, until: asyncio.Event) -> int:
    """Command after command; each must be answered, and rightly."""
    done = 0
    while not until.is_set():
        assert (await session.run(f"echo {done} | tee -a kept")).output == f"{done}\n"
        done += 1
        await asyncio.sleep(0.02)
    return done


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_restarted_under_load(engine: OwnEngine, server: ServerProcess, number: signal.Signals) -> None:
    """Faults 23, 24: sandboxes and their channels do not need the engine; what needs it is told to wait."""
    async with server.client() as client:
        sessions = [await created_at_last(client, thread=f"t{i}") for i in range(3)]
        over = asyncio.Event()
        short = [asyncio.create_task(keep_running(session, over)) for session in sessions]
        long = [asyncio.create_task(session.run(counted("long", 3))) for session in sessions]
        creating = [asyncio.create_task(created_at_last(client, thread=f"new{i}")) for i in range(3)]
        await asyncio.sleep(0.2)
        await asyncio.to_thread(engine.stop, number)
        await asyncio.sleep(1)
        await asyncio.to_thread(engine.start)
        for result in await asyncio.gather(*long):
            assert result.output == "done long\n"
        created = await asyncio.gather(*creating)
        over.set()
        for session, done in zip(sessions, await asyncio.gather(*short), strict=True):
            assert done > 20
            assert int((await session.run("wc -l < kept")).output) == done
            assert await times_run(session, "long") == 1
            assert (await session.refresh()).generation == 1
        for session in created:
            assert (await session.run("echo new")).output == "new\n"
        assert len({session.id for session in [*sessions, *created]}) == 6
        # Its events are heard again.
        engine.docker("rm", "-f", server.container_of(sessions[0]))

        async def lost() -> bool:
            return (await sessions[0].refresh()).state == "lost"

        await eventually(lost, NOTICED_WITHIN_S, "a loss after the restart")
    await server.settle()


async def test_frozen(engine: OwnEngine, server: ServerProcess) -> None:
    """Fault 25: commands do not notice; creates end in time and may be tried again; a delete waits for it."""
    async with server.client() as client, httpx.AsyncClient(base_url=server.url, timeout=30) as http:
        session, doomed = await created_at_last(client), await created_at_last(client)
        engine.send(signal.SIGSTOP)
        try:
            began = time.monotonic()
            over = asyncio.Event()
            short = asyncio.create_task(keep_running(session, over))
            deleting = asyncio.create_task(doomed.delete())
            refused = 0
            while time.monotonic() - began < 11:
                asked = time.monotonic()
                answer = await http.post("/v1/sessions", json={})
                if answer.status_code != 201:  # the warm ones may still be had
                    refused += 1
                    body = problem(answer, 503, "unavailable")
                    assert body["retryable"]
                    assert not body["may_have_executed"]
                # I8; a loaded machine's part is what is over. One that waits for the engine takes a minute.
                assert time.monotonic() - asked < QUEUE_S + 10
            assert refused
            over.set()
            assert await short > 50
        finally:
            engine.send(signal.SIGCONT)
        await deleting
        assert (await (await created_at_last(client)).run("echo on")).output == "on\n"
        assert (await session.refresh()).generation == 1
    await server.settle()


async def test_a_shim_is_killed(engine: OwnEngine, server: ServerProcess) -> None:
    """Fault 26: nobody keeps the container any more: it is lost, and no record or process is stuck."""
    async with server.client() as client:
        session = await created_at_last(client, thread="t")
        init = server.init_of(session)
        status = Path(f"/proc/{init}/status").read_text()
        shim = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("PPid:"))
        assert "shim" in Path(f"/proc/{shim}/comm").read_text()
        os.kill(shim, signal.SIGKILL)

        async def lost() -> bool:
            return (await session.refresh()).state == "lost"

        await eventually(lost, 30, "the session is lost")
        with pytest.raises(errors.SandboxLost) as refused:
            await session.run("true")
        assert told(refused.value).details["loss"]
        await session.delete()
        await eventually(lambda: has_ended(init), 30, "its process has ended")
        assert (await created_at_last(client, thread="t")).id != session.id
    await server.settle()


async def test_the_machine_is_rebooted(engine: OwnEngine, server: ServerProcess) -> None:
    """Fault 53: every session is lost and says so, nothing of before is left, and all can be had again."""
    async with server.client() as client:
        sessions = [await created_at_last(client, thread=f"t{i}", env={"N": str(i)}) for i in range(3)]
        await server.kill()
        engine.docker("kill", *engine.docker("ps", "-q").stdout.split())
        await asyncio.to_thread(engine.stop, signal.SIGKILL)
        await asyncio.to_thread(engine.start)
        await server.start()
        for i, session in enumerate(sessions):
            found = await client.thread(f"t{i}")
            assert (found.id, found.state) == (session.id, "lost")
            assert found.info.loss is not None
            assert "exited" in found.info.loss.reason
            with pytest.raises(errors.SandboxLost) as refused:
                await session.run("true")
            assert not told(refused.value).may_have_executed
        await server.settle()
        for i, session in enumerate(sessions):
            await session.recreate()
            assert (await session.run("echo $N; ls -A")).output == f"{i}\n"
            assert session.generation == 2
    await server.settle()
