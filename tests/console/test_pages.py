"""Every page: axe finds nothing, nothing is wider than a phone, and the first page is small."""

from __future__ import annotations

import gzip
import json
import re
from typing import Any

import pytest

from sandlot.api.console.files import read_files
from tests.console.conftest import Console
from tests.console.stage.axe import found_in_each_form
from tests.console.stage.scene import Scene
from tests.console.stage.sights import sights_of
from tests.service.browsing import opened_page

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

# All scripts and styles without the terminal, compressed.
MAX_BYTES = 300 * 1024
SESSIONS = 1_000
PAINTED_MS = 1_000


async def test_axe_finds_nothing(console: Console, scene: Scene, administration: None, axe: str) -> None:
    """On any page and in any dialog, light and dark, on a desktop and on a phone; and nothing is too wide."""
    problems: dict[str, list[str]] = {}
    for sight in sights_of(scene):
        await sight.open(console.page, console.server.url)
        problems |= await found_in_each_form(console.page, axe, sight.name)
        await console.check()
    assert problems == {}, json.dumps(problems, indent=1)


async def test_axe_finds_nothing_before_somebody_is_in(console: Console, chromium: Any, axe: str) -> None:
    async with opened_page(chromium) as page:
        await page.goto(f"{console.server.url}/console/")
        stranger = Console(console.server, console.client, page)
        await page.get_by_label("API key").wait_for()
        problems = await found_in_each_form(page, axe, "login")
        await stranger.log_in("not-the-key-of-this-server")
        await page.locator(".failure").wait_for()
        problems |= await found_in_each_form(page, axe, "wrong key")
    assert problems == {}, json.dumps(problems, indent=1)


async def test_the_keyboard_reaches_a_dialog_and_comes_back(console: Console) -> None:
    page = console.page
    await console.go("/sessions")
    await page.get_by_role("button", name="New session").focus()
    await page.keyboard.press("Enter")
    await page.get_by_role("dialog").wait_for()
    await page.keyboard.press("Escape")
    await page.get_by_role("dialog").wait_for(state="detached")
    assert await page.evaluate("document.activeElement.innerText") == "New session"


async def test_a_thousand_sessions_are_painted_at_once(console: Console) -> None:
    page = console.page
    async with console.client.create() as session:
        one = (await page.request.get(
            f"{console.server.url}/v1/sessions/{session.id}",
            headers={"Authorization": f"Bearer {console.server.api_key}"},
        ))  # fmt: skip
        known = await one.json()
    many = [{**known, "id": f"ses_{index:032x}", "thread": f"thread {index}"} for index in range(SESSIONS)]

    async def answer(route: Any) -> None:
        found = re.search(r"after=(\d+)", route.request.url)
        after = int(found[1]) if found else 0
        shown = many[after : after + 500]
        more = str(after + 500) if after + 500 < SESSIONS else None
        await route.fulfill(json={"sessions": shown, "next": more})

    await page.route("**/v1/sessions?*", answer)
    await console.go("/sessions")
    await page.locator("tbody tr").first.wait_for()
    took = await page.evaluate(
        """async () => {
            const input = document.querySelector('input[type=search]');
            const set = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value').set;
            const began = performance.now();
            set.call(input, 'thread 49');
            input.dispatchEvent(new Event('input', { bubbles: true }));
            await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
            return performance.now() - began;
        }"""
    )
    assert took < PAINTED_MS
    assert await page.locator("tbody tr").count() == 11  # 49 and 490 to 499


async def test_the_first_page_is_small() -> None:
    files = read_files()
    if not files:
        pytest.skip("the console is not built (make console)")
    code = {
        name: file
        for name, file in files.items()
        if name.endswith((".js", ".css")) and "screen" not in name.lower()
    }
    assert sum(len(file.gzipped or gzip.compress(file.content)) for file in code.values()) < MAX_BYTES
