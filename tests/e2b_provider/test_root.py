"""The agent as root, as in E2B's cloud: a container whose root has what an ordinary machine's has.

No server here has sandboxes with root. So a container takes the sandbox's place, and the engine's
command the SDK's. Agent, relay, carrier and link are the real ones.
"""

from __future__ import annotations

import asyncio
import secrets
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from sandlot.domain.errors import SandboxLost
from sandlot.providers.e2b import start
from sandlot.providers.e2b.carrier import Carrier
from sandlot.providers.e2b.sandbox import E2BSandbox
from sandlot.providers.link.link import SOCKET_NAME, AgentLink
from sandlot.testing.eventually import eventually
from sandlot.testing.provider_suite.harness import ok, run
from tests.docker.conftest import BASE, docker

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="module")]


class Process:
    def __init__(self, process: asyncio.subprocess.Process, reading: asyncio.Task[None]) -> None:
        self._process = process
        self._reading = reading

    async def send(self, text: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(text)
        await self._process.stdin.drain()

    async def wait(self) -> None:
        await self._reading

    def break_off(self) -> None:
        self._process.kill()

    async def leave(self) -> None:
        self._reading.cancel()
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()


class Machine:
    """What the SDK does in a sandbox, in a container."""

    def __init__(self) -> None:
        self.id = f"sandlot-test-root-{secrets.token_hex(4)}"
        self.relays: list[Process] = []
        docker("run", "-d", "--name", self.id, "--user", "0", "--network", "none", BASE, "sleep", "3600")
        docker("exec", "-u", "0", self.id, "useradd", "--uid", "1777", "user")

    async def run(self, command: str) -> str:
        return str(await asyncio.to_thread(docker, "exec", "-u", "0", self.id, "bash", "-c", command))

    async def write(self, path: str, content: bytes) -> None:
        command = ["/usr/bin/docker", "exec", "-i", "-u", "0", self.id, "sh", "-c", f"cat >{path}"]
        await asyncio.to_thread(subprocess.run, command, input=content, check=True)

    async def start(self, command: str, on_stdout: Callable[[str], Awaitable[None]]) -> Process:
        process = await asyncio.create_subprocess_exec(
            *("/usr/bin/docker", "exec", "-i", "-u", "0", self.id, "bash", "-c", command),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )

        async def read() -> None:
            assert process.stdout is not None
            while text := await process.stdout.read(65536):
                await on_stdout(text.decode("ascii"))

        self.relays.append(Process(process, asyncio.create_task(read())))
        return self.relays[-1]

    async def is_gone(self) -> bool:
        return False


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def machine() -> AsyncIterator[Machine]:
    machine = Machine()
    yield machine
    await asyncio.to_thread(docker, "rm", "-f", machine.id)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox(machine: Any, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[E2BSandbox]:
    folder: Path = tmp_path_factory.mktemp("link")
    inside = start.new_folder()
    place = await start.prepare(machine, inside, "root")
    link = AgentLink(folder, secret=bytes(32), epoch=1, setup=place.setup(), first_contact=True)
    sandbox = E2BSandbox("sbx_" + "0" * 32, machine, link, start.agent_program(inside))
    await link.open()
    sandbox.carry_with(Carrier(machine, start.relay_command(inside), folder / SOCKET_NAME, sandbox.mark_lost))
    await start.start_agent(machine, inside)
    await link.wait_ready(30)
    yield sandbox
    await sandbox.close()


async def test_commands_run_as_the_user_without_privileges(sandbox: E2BSandbox) -> None:
    assert await ok(sandbox, "id -u; id -un; pwd") == "1777\nuser\n/workspace\n"
    status = await ok(sandbox, "grep -E 'Cap(Eff|Prm|Bnd)|NoNewPrivs' /proc/self/status | awk '{print $2}'")
    assert status.split() == ["0000000000000000"] * 3 + ["1"]


async def test_commands_cannot_touch_the_agent(sandbox: E2BSandbox) -> None:
    """Neither end it, nor read it, nor meet its socket."""
    await run(sandbox, "kill -9 -1")
    agent = (await ok(sandbox, "pgrep -f 'agent remote'")).split()[0]
    for attempt in (f"kill -9 {agent}", f"cat /proc/{agent}/environ", "ls /tmp/.sandlot-*/link"):
        assert (await run(sandbox, attempt)).exit_code != 0, attempt
    assert await ok(sandbox, "echo alive") == "alive\n"


async def test_no_process_leaves_its_exec(sandbox: E2BSandbox) -> None:
    """The group stays with it, whatever it does to its parents, session, environment and limits."""
    script = "(env -i prlimit --rttime=5 setsid setsid sleep 4711 </dev/null >/dev/null 2>&1 &) ; sleep 60"
    assert (await run(sandbox, script, timeout_s=1.5)).timed_out

    async def gone() -> bool:
        return (await run(sandbox, "pgrep -x sleep -a | grep 4711")).exit_code != 0

    await eventually(gone, 20, "the daemon is gone")


async def test_a_broken_relay_loses_nothing(sandbox: E2BSandbox, machine: Machine) -> None:
    running = asyncio.create_task(run(sandbox, "for i in $(seq 40); do echo $i; sleep 0.1; done"))
    await asyncio.sleep(1)
    before = len(machine.relays)
    machine.relays[-1].break_off()
    assert (await running).stdout == "".join(f"{i}\n" for i in range(1, 41)).encode()
    assert len(machine.relays) > before


async def test_an_agent_that_ends_is_reported(sandbox: E2BSandbox, machine: Machine) -> None:
    """The last test here: nothing is left of the sandbox."""
    await machine.run("pkill -9 -f 'agent remote'")
    assert "agent has ended" in await asyncio.wait_for(sandbox.wait_lost(), 20)
    with pytest.raises(SandboxLost):
        await run(sandbox, "true")
