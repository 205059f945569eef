"""A sandbox dies, of itself or by somebody's hand: the session says so soon, and nobody is told a lie."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable

import pytest

from sandlot import AsyncSession, errors
from sandlot.domain.capacity.limits import MIB, LimitChange
from sandlot.domain.session import SessionState
from sandlot.testing.eventually import eventually
from tests.faults.invariants import counted, times_run, told
from tests.faults.rig import ServerProcess, running

pytestmark = [pytest.mark.docker, pytest.mark.slow]
# Within 3 s at rest; the rest is a loaded machine's part.
NOTICED_WITHIN_S = 10.0
GRACE_S = 20.0  # SANDLOT_EXEC_GRACE_S

Kill = Callable[[ServerProcess, AsyncSession], None]


def remove_from_outside(server: ServerProcess, session: AsyncSession) -> None:
    server.docker("rm", "-f", server.container_of(session))


def kill_pid_1(server: ServerProcess, session: AsyncSession) -> None:
    os.kill(server.init_of(session), signal.SIGKILL)


@pytest.mark.parametrize("kill", [remove_from_outside, kill_pid_1])
async def test_noticed_and_told(server: ServerProcess, kill: Kill) -> None:
    """Faults 30, 33: seen by whoever asks, whoever waits for a command and whoever reads a stream."""
    async with server.client() as client:
        session = await client.create(thread="t", env={"WHO": "me"}, metadata={"for": "keeping"})

        async def read() -> None:
            async for _ in session.stream("echo begun; sleep 60"):
                pass

        reading = asyncio.create_task(read())
        waiting = asyncio.create_task(session.run(counted("once", 60)))
        await running(session, 2)
        await asyncio.to_thread(kill, server, session)
        began = time.monotonic()
        for answer in await asyncio.gather(reading, waiting, return_exceptions=True):
            error = told(answer)
            assert isinstance(error, errors.SandboxLost)
            assert error.may_have_executed
            assert not error.retryable
            assert error.details["loss"]["generation"] == 1
            assert error.details["loss"]["reason"]
        with pytest.raises(errors.SandboxLost) as refused:
            await session.run("echo more")
        assert not told(refused.value).may_have_executed
        assert (await session.refresh()).state == "lost"
        assert time.monotonic() - began < NOTICED_WITHIN_S
        loss = session.info.loss
        assert loss is not None
        assert "metadata" in loss.kept
        # Never replaced in silence, not even for its thread; when it is asked for, with what the session has.
        assert (await client.thread("t")).state == "lost"
        again = await client.thread("t", recreate_lost=True)
        assert (again.id, again.generation, again.info.metadata) == (session.id, 2, {"for": "keeping"})
        assert (await again.run('echo "$WHO"')).output == "me\n"
        assert await times_run(again, "once") == 1, "its files are kept, and nothing ran twice"
    await server.settle()


async def test_memory_ends_a_command_and_not_its_sandbox(server: ServerProcess) -> None:
    """Fault 31."""
    async with server.client() as client:
        session = await client.create()
        await session.files.write("kept.txt", "here")
        result = await session.run("python3 -c 'x = bytearray(2 << 30)'")
        assert (result.verdict, result.ok) == ("oom", False)
        assert (await session.run("cat kept.txt")).output == "here"
        assert (await session.refresh()).generation == 1
    await server.settle()


async def test_memory_ends_the_agent_last(server: ServerProcess) -> None:
    """Fault 32: commands go first, since their score is higher; without the agent the sandbox is lost."""
    async with server.client() as client:
        session = await client.create(limits=LimitChange(memory_bytes=48 * MIB))
        command = await session.run("cat /proc/self/oom_score_adj")
        init = server.init_of(session)
        with open(f"/proc/{init}/oom_score_adj") as score:
            assert int(command.output) > int(score.read())
        # Made as likely a victim as commands, it is the largest: what takes the memory is /tmp, no process.
        await session.start("sleep 2; dd if=/dev/zero of=/tmp/full bs=64k count=1000")
        with open(f"/proc/{init}/oom_score_adj", "w") as score:
            score.write("1000")

        async def lost() -> bool:
            return (await session.refresh()).state == "lost"

        await eventually(lost, 2 + NOTICED_WITHIN_S, "the session is lost")
        await session.recreate()
        assert (await session.run("echo new")).output == "new\n"
    await server.settle()


@pytest.mark.parametrize("how", [("rm", "-f"), ("kill",)])
async def test_the_pool_is_dead(server: ServerProcess, how: tuple[str, ...]) -> None:
    """Fault 47: replaced within the same request. The server stands still meanwhile, so it learns of the
    deaths and of the requests at the same time.
    """
    async with server.client() as client:

        async def filled() -> bool:
            return sum(pool.ready for pool in (await client.health()).pools.values()) >= 2

        await eventually(filled, 60, "the pool is full")
        os.kill(server.pid, signal.SIGSTOP)
        try:
            creating = [asyncio.create_task(client.create()) for _ in range(2)]
            await asyncio.sleep(0.2)
            warm = server.docker("ps", "-q", "--filter", f"label=sandlot.owner={server.owner}").split()
            await asyncio.to_thread(server.docker, *how, *warm)
        finally:
            os.kill(server.pid, signal.SIGCONT)
        for session in await asyncio.gather(*creating):
            assert (await session.run("echo alive")).output == "alive\n"
            assert (await session.refresh()).generation == 1
    await server.settle()


async def test_deleting_what_is_lost(server: ServerProcess) -> None:
    """A lost session ends as any other does, also while its sandbox is being removed from outside."""
    async with server.client() as client:
        session = await client.create(thread="t")
        container = server.container_of(session)
        removing = asyncio.create_task(asyncio.to_thread(server.docker, "rm", "-f", container))
        await session.delete()
        with contextlib.suppress(subprocess.CalledProcessError):  # the other was first
            await removing
        with pytest.raises(errors.SessionEnded) as gone:
            await session.run("true")
        assert not told(gone.value).may_have_executed
        assert (await client.thread("t")).id != session.id
    await server.settle()


async def test_paused_and_woken(server: ServerProcess) -> None:
    """Fault 34: every call ends in its time, the state says why, and the command is there when it is woken (O1)."""
    async with server.client() as client:
        session = await client.create()
        background = await session.start("sleep 2; echo done")
        server.docker("pause", server.container_of(session))
        try:
            began = time.monotonic()
            with pytest.raises(errors.SandboxUnresponsive) as caught:
                await session.run("true", timeout_s=5)
            assert time.monotonic() - began < 5 + GRACE_S + NOTICED_WITHIN_S
            assert told(caught.value).retryable

            async def silent() -> bool:
                return (await session.refresh()).state is SessionState.UNRESPONSIVE

            await eventually(silent, GRACE_S + NOTICED_WITHIN_S, "the session is unresponsive")
            began = time.monotonic()
            with pytest.raises(errors.SandboxUnresponsive):
                await session.files.read("f")
            assert time.monotonic() - began < NOTICED_WITHIN_S
            assert any(session.id in problem for problem in (await client.health()).problems)
        finally:
            server.docker("unpause", server.container_of(session))

        async def active() -> bool:
            return (await session.refresh()).state is SessionState.ACTIVE

        await eventually(active, GRACE_S + NOTICED_WITHIN_S, "the session is active again")
        assert (await background.wait(30)).output == "done\n"
        await session.delete()
