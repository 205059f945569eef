"""The console in a real Chromium, on a real server with real sandboxes."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
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


async def test_what_a_session_uses_is_plotted(console: Console) -> None:
    page = console.page
    async with console.client.create() as session:
        await console.go(f"/sessions/{session.id}")
        await page.get_by_role("img", name=re.compile(r"^Processor, of .*: used \d+ %$")).wait_for()
        await session.start("while :; do :; done")
        # Nothing else in an idle sandbox uses a fifth of what it may.
        await page.get_by_role(
            "img", name=re.compile(r"^Processor, of .*: used ([2-9]\d|1\d\d) %$")
        ).wait_for()
        await page.get_by_role("img", name=re.compile(r"^Memory, of .*: used \d.* [KM]iB$")).wait_for()
        await page.get_by_role("img", name=re.compile(r"^Processes, of .*: running [1-9]\d*$")).wait_for()


async def test_files_go_up_are_edited_and_come_down(console: Console, tmp_path: Path) -> None:
    page = console.page
    (tmp_path / "notes.txt").write_text("first\n")
    async with console.client.create() as session:
        await console.go(f"/sessions/{session.id}/files")
        await page.locator("input[type=file]").set_input_files(tmp_path / "notes.txt")
        await page.get_by_role("button", name="notes.txt", exact=False).first.click()
        editor = page.get_by_label("Content of notes.txt")
        await editor.fill("second\n")
        await page.get_by_role("button", name="Save").click()
        await shows(page, "Saved.")
        assert await session.files.read_text("notes.txt") == "second\n"
        async with page.expect_download() as waiting:
            await page.get_by_role("button", name="Download notes.txt").click()
        download = await waiting.value
        assert download.suggested_filename == "notes.txt"
        assert Path(await download.path()).read_text() == "second\n"


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


async def test_a_denied_host_is_allowed(console: Console) -> None:
    page = console.page
    async with console.client.create() as session:
        await session.run("curl -sS -m 5 https://api.example.com/")
        await console.go(f"/sessions/{session.id}/network")
        await page.get_by_role("button", name="Allow api.example.com").click()
        await page.get_by_role("button", name="Revoke").wait_for()
        grants = (await session.network.status()).grants
        assert [grant.entry for grant in grants] == ["api.example.com"]
