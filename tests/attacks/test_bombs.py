"""S5, 26 to 30: bombs end with their timeout, memory that runs out costs the command, and the sandbox lives on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from sandlot.domain.capacity.limits import MIB, Limits
from sandlot.domain.environment import Tier
from sandlot.domain.errors import LinkInterrupted, SandboxLost
from sandlot.domain.execution import ExecRequest, ExecResult, Verdict
from sandlot.providers.base import Sandbox
from sandlot.testing.eventually import eventually
from sandlot.testing.provider_suite import Harness

# Removing a gVisor sandbox in which a bomb was has taken the engine four minutes.
pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]

FORK_BOMBS = {
    "of a shell": "f(){ f|f& };f; sleep 60",
    "of python": "python3 -c 'import os\nwhile True:\n  try: os.fork()\n  except OSError: pass'",
    "of threads": "python3 -c 'import threading, time\nwhile True:\n  try: threading.Thread(target=time.sleep, args=(60,)).start()\n  except RuntimeError: time.sleep(.01)'",
}
MEMORY_BOMBS = {
    "one": "python3 -c 'b = bytearray(2 << 30); print(len(b))'",
    "twenty at once": "for i in $(seq 20); do python3 -c 'import time; b = bytearray(200 << 20); time.sleep(20)' & done; wait",
    "growing": "python3 -c 'b = []\nwhile True: b.append(bytearray(8 << 20))'",
    "in a memfd": "python3 -c 'import os\nf = os.memfd_create(\"x\")\nb = bytes(1 << 20)\nwhile True: os.write(f, b)'",
    "in a memfd, hidden from the kernel": (
        "python3 -c 'import os\n"
        "for score in range(0, 1001, 100):\n"
        "  try: open(\"/proc/self/oom_score_adj\", \"w\").write(str(score)); break\n"
        "  except OSError: pass\n"
        "f = os.memfd_create(\"x\")\nb = bytes(1 << 20)\nwhile True: os.write(f, b)'"
    ),
}  # fmt: skip


@pytest_asyncio.fixture(loop_scope="session")
async def sandbox(harness: Harness) -> AsyncIterator[Sandbox]:
    sandbox = await harness.create(Limits(memory_bytes=256 * MIB))
    yield sandbox
    await harness.destroy(sandbox.id)


@pytest_asyncio.fixture(loop_scope="session")
async def roomy(harness: Harness) -> AsyncIterator[Sandbox]:
    """With memory for every process that a bomb may fork, so that it ends by its timeout and by nothing else."""
    sandbox = await harness.create(Limits(memory_bytes=2048 * MIB))
    yield sandbox
    await harness.destroy(sandbox.id)


async def run(sandbox: Sandbox, command: str, timeout_s: float) -> ExecResult:
    return await asyncio.wait_for(
        sandbox.run(ExecRequest(command=command, timeout_s=timeout_s)), timeout_s + 90
    )


async def still_works(sandbox: Sandbox) -> None:
    async def quiet() -> bool:
        return (await sandbox.health()).processes < 5

    await eventually(quiet, 30, "the bomb is gone")
    result = await run(sandbox, "echo alive", 10)
    assert result.stdout == b"alive\n"


@pytest.mark.alone  # it measures time, with hundreds of processes that want the processor
@pytest.mark.parametrize("bomb", FORK_BOMBS)
async def test_fork_bomb_ends_with_its_timeout(roomy: Sandbox, bomb: str) -> None:
    began = time.monotonic()
    result = await run(roomy, FORK_BOMBS[bomb], 6)
    assert result.verdict is Verdict.TIMEOUT, result
    # The bound tells late from never: the agent shares half a core with 255 busy processes, and on gVisor each system
    # call takes it a second or two.
    assert time.monotonic() - began < 6 + 60
    await still_works(roomy)


@pytest.mark.alone  # as above
@pytest.mark.parametrize("bomb", FORK_BOMBS)
async def test_fork_bomb_can_be_killed(roomy: Sandbox, bomb: str) -> None:
    request = ExecRequest(command=FORK_BOMBS[bomb], timeout_s=60)
    await roomy.start(request)
    await asyncio.sleep(4)
    try:
        await roomy.kill(request.exec_id)
    except LinkInterrupted:  # as above; a kill may be repeated
        await roomy.kill(request.exec_id)
    await still_works(roomy)


@pytest.mark.parametrize("bomb", MEMORY_BOMBS)
async def test_memory_bomb_costs_its_command(harness: Harness, sandbox: Sandbox, bomb: str) -> None:
    spare: Sandbox | None = None
    try:
        result = await run(sandbox, MEMORY_BOMBS[bomb], 40)
    except SandboxLost:
        # The kernel gives back a memfd after the process that it killed for it. If memory is asked for in
        # between, only the agent is left to kill: SECURITY.md says so. It is rare, so not twice in a row.
        if "memfd" not in bomb or harness.environment.tier is Tier.RUNSC:
            raise
        sandbox = spare = await harness.create(Limits(memory_bytes=256 * MIB))
        result = await run(sandbox, MEMORY_BOMBS[bomb], 40)
    assert result.verdict in (Verdict.OOM, Verdict.NONZERO, Verdict.OK), result
    if bomb != "twenty at once":  # there children are killed, and the shell goes on
        assert result.verdict is Verdict.OOM or harness.environment.tier is Tier.RUNSC, result
    await still_works(sandbox)
    if spare is not None:
        await harness.destroy(spare.id)


async def test_small_sandbox_survives_its_own_output(harness: Harness) -> None:
    """R3: the agent's memory of what commands print fits into the sandbox's."""
    sandbox = await harness.create(Limits(memory_bytes=32 * MIB, tmp_bytes=4 * MIB, shm_bytes=MIB))
    for _ in range(6):
        request = ExecRequest(command="head -c 16000000 /dev/zero", output_limit=16 * MIB, timeout_s=30)
        await asyncio.wait_for(sandbox.run(request), 60)
    await still_works(sandbox)
    await harness.destroy(sandbox.id)
