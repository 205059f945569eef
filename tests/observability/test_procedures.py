"""docs/operations/procedures.md, step by step."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from sandlot.domain.errors import NotFound, SandboxLost
from sandlot.testing.eventually import eventually
from tests.faults.rig import ServerProcess, created_at_last

pytestmark = [pytest.mark.docker, pytest.mark.slow]


@pytest_asyncio.fixture
async def server(slim_registry: Path) -> AsyncIterator[ServerProcess]:
    server = ServerProcess(registry=slim_registry)
    try:
        await server.start()
        yield server
    finally:
        await server.clean()


async def test_a_backup_brings_sessions_and_their_files_back(server: ServerProcess, tmp_path: Path) -> None:
    async with server.client() as client:
        kept = await created_at_last(client)
        running = await created_at_last(client)
        await kept.run("echo mine > /workspace/file")
        assert await server.terminate() == 0
        copy = tmp_path / "backup"
        subprocess.run(["cp", "-a", str(server.data_dir), str(copy)], check=True)
        await server.start()
        later = await created_at_last(client)
        server.docker("rm", "-f", server.container_of(kept))

        assert await server.terminate() == 0
        shutil.rmtree(server.data_dir)
        subprocess.run(["cp", "-a", str(copy), str(server.data_dir)], check=True)
        await server.start()

        # Its sandbox ran on meanwhile: it is taken over.
        assert (await running.run("echo here")).stdout == "here\n"
        # Its sandbox has ended since: it is lost, and its files are not.
        with pytest.raises(SandboxLost):
            await kept.run("true")
        await kept.recreate()
        assert (await kept.run("cat /workspace/file")).stdout == "mine\n"
        # The backup knows nothing of it, so its sandbox is removed.
        with pytest.raises(NotFound):
            await later.run("true")
        await eventually(lambda: later.info.sandbox_id not in server.containers(), 60)
