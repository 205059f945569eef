"""A server for each test, removed with all that it made."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.faults.rig import ServerProcess


@pytest_asyncio.fixture
async def server() -> AsyncIterator[ServerProcess]:
    process = ServerProcess()
    await process.start()
    try:
        yield process
    finally:
        await process.clean()
