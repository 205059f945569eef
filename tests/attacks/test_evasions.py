"""S2, 43, 44: a command that hides from its timeout. Three seconds after it, nothing of the command runs."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from sandlot.domain.execution import ExecRequest
from sandlot.providers.base import Sandbox
from sandlot.testing.provider_suite import Harness
from tests.attacks.inside.evasions import WAYS

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="session")]

PROGRAM = (Path(__file__).parent / "inside" / "evasions.py").read_bytes()
GONE_S = 3.0
# Of every process but the agent, its file helper and this one: what it is called, and whether a thread of it runs.
LIST = r"""
import json, os, re
found = []
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        status = open(f"/proc/{pid}/status").read()
    except OSError:
        continue
    name, state, threads = (re.search(rf"^{key}:\s*(\S+)", status, re.M)[1] for key in ("Name", "State", "Threads"))
    if int(pid) not in (1, os.getpid()) and name != "agent" and not (state == "Z" and int(threads) <= 1):
        found.append([name, state, int(threads)])
print(json.dumps(found))
"""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def sandbox(harness: Harness) -> AsyncIterator[Sandbox]:
    sandbox = await harness.create()
    await sandbox.files.write("evasions.py", PROGRAM)
    yield sandbox
    await harness.destroy(sandbox.id)


async def running(sandbox: Sandbox) -> list[object]:
    result = await sandbox.run(ExecRequest(argv=("python3", "-c", LIST), timeout_s=30))
    assert result.exit_code == 0, result
    found: list[object] = json.loads(result.stdout)
    return found


@pytest.mark.parametrize("ending", ["timeout", "kill"])
@pytest.mark.parametrize("way", WAYS)
async def test_nothing_of_a_command_outlives_it(sandbox: Sandbox, way: str, ending: str) -> None:
    argv = ("python3", "evasions.py", way)
    if ending == "timeout":
        began = time.monotonic()
        result = await asyncio.wait_for(sandbox.run(ExecRequest(argv=argv, timeout_s=1)), 30)
        assert (result.verdict.value, time.monotonic() - began < 1 + GONE_S) == ("timeout", True)
    else:
        request = ExecRequest(argv=argv, timeout_s=60)
        await sandbox.start(request)
        await asyncio.sleep(0.5)
        await sandbox.kill(request.exec_id)
    async with asyncio.timeout(GONE_S + 10):  # listing takes its time, too
        began = time.monotonic()
        while left := await running(sandbox):
            assert time.monotonic() - began < GONE_S, left
            await asyncio.sleep(0.1)
