"""The console in a real Chromium, on a real server with real sandboxes."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path
from typing import Any

import pytest

from sandlot import AsyncSession
from sandlot.testing.eventually import eventually
from tests.console.conftest import KEY, Console
from tests.service.browsing import opened_page, picture, shows

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

SECONDS = 20.0
FLOOD_BYTES = 10 * 1024 * 1024
# The longest that a page may be busy while a flood is drawn, of the time that this takes. A page that draws it in
# one piece is busy all the time. How long a key waits is measured by `bench.console`.
BUSY_SHARE = 0.5


async def _types(console: Console, text: str) -> None:
    await console.page.keyboard.type(text + "\n")


async def _open_terminal(console: Console, session: AsyncSession) -> None:
    await console.go(f"/sessions/{session.id}/terminal")
    await console.open_terminal()


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


async def test_a_terminal_types_and_shows(console: Console) -> None:
    async with console.client.create() as session:
        await _open_terminal(console, session)
        await _types(console, "echo $((6 * 7))-and-more | tee seen.txt")
        await console.screen_shows("42-and-more")
        assert await session.files.read_text("seen.txt") == "42-and-more\n"
        await _types(console, "stty size")
        rows = await console.page.evaluate(
            "document.querySelectorAll('.xterm-accessibility-tree > *').length"
        )
        await console.screen_shows(f"{rows} ")
        await console.check()


async def test_a_terminal_goes_on_after_a_broken_connection(console: Console) -> None:
    """Each line once, and in order, though the connection breaks in the middle of them."""
    sockets: list[Any] = []
    await console.page.route_web_socket(
        "**/attach*", lambda socket: sockets.append((socket, socket.connect_to_server()))
    )
    async with console.client.create() as session:
        await _open_terminal(console, session)
        await _types(console, "for i in $(seq 60); do echo line-$i; sleep 0.05; done; echo all-$((1 + 1))")
        for _ in range(3):
            await asyncio.sleep(0.6)
            page_side, server_side = sockets[-1]
            await server_side.close(code=1001)
            await page_side.close(code=3001)
        await console.screen_shows("all-2")
        assert len(sockets) >= 4
        await console.page.reload()
        await console.page.get_by_text("Connected.").wait_for()
        await console.screen_shows("all-2")
        text = await console.page.evaluate("document.querySelector('.xterm-accessibility-tree').innerText")
        lines = [line.strip() for line in text.splitlines() if line.strip().startswith("line-")]
        assert lines == [f"line-{number}" for number in range(61 - len(lines), 61)]


async def test_much_output_leaves_the_page_responsive(console: Console) -> None:
    async with console.client.create() as session:
        await _open_terminal(console, session)
        await console.page.get_by_label("For screen readers").uncheck()
        await console.page.locator(".xterm-helper-textarea").focus()
        await console.page.evaluate(
            """() => {
                window.__longest = 0;
                let before = performance.now();
                setInterval(() => {
                    const now = performance.now();
                    window.__longest = Math.max(window.__longest, now - before);
                    before = now;
                }, 10);
            }"""
        )
        began = time.monotonic()
        await _types(
            console,
            f"head -c {FLOOD_BYTES} /dev/zero | tr '\\0' 'x' | fold -w 79; echo flood-$((2 + 3)); touch over",
        )

        async def over() -> bool:
            return bool(await session.files.exists("over"))

        await eventually(over, 60, "the flood is over")
        await console.page.get_by_label("For screen readers").check()
        await console.screen_shows("flood-5", 60)
        took_ms = 1000 * (time.monotonic() - began)
        assert await console.page.evaluate("window.__longest") < BUSY_SHARE * took_ms


async def test_a_flood_that_the_page_has_left_can_be_interrupted(console: Console) -> None:
    """It reads no more while it draws what it has. A key is sent all the same."""
    left = asyncio.Event()
    console.page.on("websocket", lambda socket: socket.on("close", lambda _: left.set()))
    async with console.client.create() as session:
        await _open_terminal(console, session)
        await console.page.get_by_label("For screen readers").uncheck()
        await console.page.locator(".xterm-helper-textarea").focus()
        await _types(console, "yes $(head -c 2000 /dev/zero | tr '\\0' 'x')")
        await asyncio.wait_for(left.wait(), 60)
        await console.page.keyboard.press("Control+C")

        async def interrupted() -> bool:
            return (await session.run("pgrep -x yes")).exit_code != 0

        await eventually(interrupted, 20, "the flood is interrupted")


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
