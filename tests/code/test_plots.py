"""A plot and a table by code contexts, on runc and gVisor. The shipped image: ``test_code_image.py``."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from sandlot.domain.code.events import CellData
from sandlot.wiring import LocalWorker
from tests.code.conftest import environment, new_session, run, worker_with
from tests.code.plots import (
    PLOT,
    TABLE,
    TAG,
    assert_charts_and_tables,
    assert_shows_the_plot,
    assert_shows_the_table,
    plots_image,
)

pytestmark = [
    pytest.mark.docker,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="session"),
]

TIERS = ("runc", "runsc")
ENVIRONMENTS = [environment(f"plots-{tier}", image=TAG, tier=tier) for tier in TIERS]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def plots_service() -> AsyncIterator[LocalWorker]:
    await asyncio.to_thread(plots_image)
    async with worker_with(*ENVIRONMENTS) as service:
        yield service


@pytest.mark.parametrize("tier", TIERS)
async def test_plots_and_tables(plots_service: LocalWorker, tier: str) -> None:
    async with new_session(plots_service, f"plots-{tier}") as session:
        plotted = await run(plots_service, session, PLOT, timeout_s=200)
        (plot,) = plotted.of(CellData)
        assert_shows_the_plot(base64.b64decode(plot.data["image/png"]))
        assert not plot.main
        (table,) = (await run(plots_service, session, TABLE, timeout_s=200)).of(CellData)
        assert table.main
        assert_shows_the_table(table.data["text/html"], table.data["text/plain"])
        await assert_charts_and_tables(plots_service, session)
