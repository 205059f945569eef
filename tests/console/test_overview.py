"""The overview hears of what happens, and shows how much of the server is in use."""

from __future__ import annotations

import re
from typing import Any

import pytest

from sandlot.testing.eventually import eventually
from tests.console.conftest import Console

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

SECONDS = 30.0
# The page's time goes on only in such steps, ten in a second at most. So it has not come to the 10 s after which the
# page asks again by itself.
STEP_MS = 20
MOST_MS = 8_000


async def _figure(page: Any, label: str) -> str:
    text = await page.locator(".figure", has=page.get_by_text(label, exact=True)).locator("dd").inner_text()
    return str(text.split()[0])


async def test_an_event_has_the_overview_ask_again(console: Console) -> None:
    page = console.page
    await page.clock.install()
    passed_ms = 0

    async def becomes(wanted: str) -> bool:
        nonlocal passed_ms
        passed_ms += STEP_MS
        await page.clock.run_for(STEP_MS)
        return await _figure(page, "Sessions") == wanted

    await console.go("/")
    await page.get_by_text("live", exact=True).wait_for()
    now = int(await _figure(page, "Sessions"))
    await page.clock.pause_at(await page.evaluate("Date.now() + 1000"))
    session = await console.client.create()
    await eventually(lambda: becomes(str(now + 1)), SECONDS, "the session is counted")
    await session.delete()
    await eventually(lambda: becomes(str(now)), SECONDS, "the session is gone")
    assert passed_ms < MOST_MS


async def test_the_load_of_a_single_server(console: Console) -> None:
    page = console.page
    async with console.client.create():
        await console.go("/")
        sessions = (await console.client.health()).active_sessions
        await page.get_by_role("meter", name=re.compile(rf"^Sessions: {sessions} of [1-9]\d*")).wait_for()
        for meter in ("Memory: ", "Processors: "):
            await page.get_by_role("meter", name=meter).wait_for()
