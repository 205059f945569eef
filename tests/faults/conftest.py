"""A server for each file, whole and without sessions before each test, removed with all that it made."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.faults.rig import ServerProcess


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shared_server() -> AsyncIterator[ServerProcess]:
    process = ServerProcess()
    try:
        await process.start()
        yield process
    finally:
        await process.clean()


@pytest_asyncio.fixture
async def server(shared_server: ServerProcess) -> ServerProcess:
    await shared_server.mend()
    return shared_server


@pytest.fixture
def slim_registry(tmp_path: Path) -> Path:
    """For an engine that has the small image alone: the default environment on it."""
    folder = tmp_path / "registry"
    (folder / "environments").mkdir(parents=True)
    (folder / "environments" / "base.yaml").write_text(
        "name: base\ndescription: A shell.\nimage: sandlot/slim\n"
    )
    return folder
