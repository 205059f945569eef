"""A worker killed with -9 in the middle of an exec: the next one gets every byte and the one result."""

from __future__ import annotations

import asyncio
import secrets
import signal
import sys
import time
from pathlib import Path

import pytest

from sandlot.domain.environment import Tier
from sandlot.domain.execution import ExecRequest
from sandlot.domain.ids import new_sandbox_id
from sandlot.providers.docker.provider import DockerProvider
from sandlot.testing.provider_suite.harness import destroy

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="session")]

WORKER = """
import asyncio, sys
from pathlib import Path
from sandlot.domain.environment import Environment, Tier
from sandlot.domain.execution import ExecRequest, Output
from sandlot.providers.base import SandboxSpec
from sandlot.providers.docker.provider import DockerProvider

async def main(owner, data_dir, tier, sandbox_id, command):
    provider = DockerProvider(owner=owner, data_dir=Path(data_dir))
    environment = Environment(name="test", image="sandlot/base:latest", tier=Tier(tier))
    sandbox = await provider.create(SandboxSpec(id=sandbox_id, environment=environment))
    execution = await sandbox.start(ExecRequest(command=command, exec_id="the-one", timeout_s=120))
    async for event in execution.events():
        if isinstance(event, Output):
            print("running", flush=True)

asyncio.run(main(*sys.argv[1:]))
"""
COMMAND = "echo run >>counter; for i in $(seq 1 4000); do echo line $i; [ $((i % 100)) = 0 ] && sleep 0.1; done; exit 3"


@pytest.mark.parametrize("tier", ["runc", "runsc"])
async def test_worker_killed_in_the_middle(short_tmp: Path, tier: str) -> None:
    owner, sandbox_id = f"test-{secrets.token_hex(4)}", new_sandbox_id()
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WORKER, owner, str(short_tmp / "d"), tier, sandbox_id, COMMAND,
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert worker.stdout is not None
    assert await asyncio.wait_for(worker.stdout.readline(), 90) == b"running\n"
    worker.send_signal(signal.SIGKILL)
    await worker.wait()
    provider = DockerProvider(owner=owner, data_dir=short_tmp / "d")
    try:
        (found,) = await provider.list()
        assert (found.id, found.state, found.tier) == (sandbox_id, "running", Tier(tier))
        begin = time.monotonic()
        sandbox = await provider.adopt(sandbox_id)
        assert time.monotonic() - begin < 14
        result = await asyncio.wait_for((await sandbox.attach("the-one", offset=0)).result(), 90)
        assert result.stdout == "".join(f"line {i}\n" for i in range(1, 4001)).encode()
        assert (result.exit_code, result.gaps) == (3, 0)
        again = await sandbox.run(ExecRequest(command=COMMAND, exec_id="the-one", timeout_s=120))
        assert (again.stdout, again.exit_code) == (result.stdout, 3)
        assert await sandbox.files.read_bytes("counter") == b"run\n", "it ran once"
    finally:
        await destroy(provider, sandbox_id)
        await provider.close()
