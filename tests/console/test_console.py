"""The console in a real Chromium, on a real server with real sandboxes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.console.conftest import KEY, Console
from tests.service.browsing import opened_page, picture, shows

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]


async def test_a_wrong_key_is_told(console: Console, chromium: Any) -> None:
    async with opened_page(chromium) as page:
        await page.goto(f"{console.server.url}/console/sessions")
        stranger = Console(console.server, console.client, page)
        await stranger.log_in("not-the-key-of-this-server")
        await shows(page, "Invalid API key")
        await stranger.log_in(KEY)
        await page.get_by_role("heading", name="Sessions").wait_for()
        # Kept for this tab alone: not in a cookie, and not where another tab finds it.
        assert await page.context.cookies() == []
        assert KEY not in await page.evaluate("JSON.stringify(localStorage)")


async def test_a_command_is_watched_and_killed(console: Console) -> None:
    page = console.page
    async with console.client.create() as session:
        running = await session.start("echo begun; sleep 600")
        await console.go(f"/sessions/{session.id}/execs")
        await page.get_by_role("button", name="echo begun").click()
        await page.get_by_label("For screen readers").check()
        await console.screen_shows("begun")
        await page.get_by_role("button", name="Kill", exact=True).click()
        await page.get_by_role("dialog").get_by_role("button", name="Kill", exact=True).click()
        await running.wait()
        await shows(page, "exit 143")


async def test_a_loss_appears_while_one_looks(console: Console) -> None:
    page = console.page
    async with console.client.create() as session:
        await console.go(f"/sessions/{session.id}")
        await shows(page, "active")
        await asyncio.to_thread(console.server.docker, "kill", console.server.container_of(session))
        await shows(page, "The sandbox is lost")
        await picture(page, "console-loss")
        await page.get_by_role("button", name="Recreate").click()
        await page.get_by_role("dialog").get_by_role("button", name="Recreate").click()
        await shows(page, "generation 2")
        assert (await session.run("echo again")).stdout == "again\n"
