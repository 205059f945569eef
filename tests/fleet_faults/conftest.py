"""One fleet for all tests that leave it whole; those that need another one make their own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.fleet_faults.healing import TIMES
from tests.fleet_faults.rig import Fleet, running


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def shared_fleet() -> AsyncIterator[Fleet]:
    async with running(Fleet()) as fleet:
        yield fleet


@pytest_asyncio.fixture(loop_scope="session")
async def fleet(shared_fleet: Fleet) -> Fleet:
    await shared_fleet.mend()
    return shared_fleet


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if TIMES:
        terminalreporter.section("how long the fleet took to heal")
        for what, seconds in TIMES:
            terminalreporter.line(f"{seconds:6.1f} s  {what}")
