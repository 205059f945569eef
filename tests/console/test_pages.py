"""Every page: axe finds nothing, nothing is wider than a phone, and the first page is small."""

from __future__ import annotations

import gzip
import json
import re
from typing import Any

import pytest

from sandlot.api.console.files import read_files
from tests.console.conftest import Console
from tests.console.scene import THREAD, conversation

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

PHONE = {"width": 390, "height": 844}
DESKTOP = {"width": 1280, "height": 900}
# All scripts and styles without the terminal, compressed.
MAX_BYTES = 300 * 1024
SESSIONS = 1_000
PAINTED_MS = 1_000


async def _pages(console: Console) -> dict[str, str]:
    session = await conversation(console.client)
    tabs = ("about", "terminal", "execs", "files", "snapshots", "network", "history", "recording")
    return {
        "overview": "/",
        "sessions": "/sessions",
        **{tab: f"/sessions/{session.id}/{tab}" for tab in tabs},
        "threads": "/threads",
        "story": f"/threads/{THREAD}",
        "fleet": "/fleet",
        **{tab: f"/admin/{tab}" for tab in ("environments", "keys", "tenants", "webhooks")},
    }


async def _violations(page: Any, axe: str) -> list[str]:
    # Playwright evaluates past the page's policy, which would refuse a script of ours too.
    found = await page.evaluate(axe + "; axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{one['id']}: {node['html'][:160]} {node['failureSummary'][:200]}"
        for one in found["violations"]
        for node in one["nodes"][:3]
    ]


async def test_axe_finds_nothing(console: Console, axe: str) -> None:
    page = console.page
    problems: dict[str, list[str]] = {}
    forms = (("light", DESKTOP), ("dark", PHONE), ("dark", DESKTOP), ("light", PHONE))
    for number, (name, path) in enumerate((await _pages(console)).items()):
        await console.go(path)
        await page.locator("main h1").first.wait_for()
        await page.wait_for_timeout(400)
        # Each page once: every part of a page is on several, in both forms.
        scheme, size = forms[number % len(forms)]
        await page.emulate_media(color_scheme=scheme)
        await page.set_viewport_size(size)
        if found := await _violations(page, axe):
            problems[f"{name} {scheme}"] = found
        await page.set_viewport_size(PHONE)
        # Charts take their new width in the next frame.
        await page.wait_for_function(
            "width => document.documentElement.scrollWidth <= width", arg=PHONE["width"]
        )
        await console.check()
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
