"""The server dies while code runs in a context: the code goes on, its result is had by its id, variables stay."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sandlot.testing.eventually import eventually
from tests.code.conftest import declare, environment, kernel_image
from tests.faults.rig import ServerProcess

pytestmark = [pytest.mark.docker, pytest.mark.slow]
AWAY_S = 3
LONG = "import time\nfor n in range(10):\n    print(n)\n    time.sleep(1)\nruns += 1\nruns"


async def test_killed_while_a_cell_runs(tmp_path: Path) -> None:
    await asyncio.to_thread(kernel_image)
    registry = declare(tmp_path / "registry", environment("base"))
    server = ServerProcess(registry=registry, pool_size="1")
    try:
        await server.start()
        async with server.client() as client:
            session = await client.create()
            await session.code.run("runs = 0", check=True)
            other = await session.code.create("bash", id="mine")
            await other.run("kept=here", check=True)
            waiting = asyncio.create_task(session.code.run(LONG, exec_id="long"))

            async def begun() -> bool:
                return any(each.exec_id == "long" for each in await session.execs())

            await eventually(begun, 30, "the cell runs")
            await server.kill()
            waiting.cancel()  # a restart may take longer than a client waits, on a busy machine
            await asyncio.gather(waiting, return_exceptions=True)
            await asyncio.sleep(AWAY_S)
            await server.start()
            result = await session.code.run(LONG, exec_id="long")
            assert (result.ok, result.text) == (True, "1"), result
            assert result.stdout == "".join(f"{n}\n" for n in range(10))
            assert (await session.code.run("runs")).text == "1"
            assert (await other.run("echo $kept")).stdout == "here\n"
            listed = {each.id: each.info for each in await session.code.contexts()}
            assert sorted(listed) == ["mine", "python"]
            assert listed["python"] is not None
            assert listed["python"].restarts == 0
            await session.delete()
        await server.settle()
    finally:
        await server.clean()
