"""A real Chromium that looks at previews. Tests are skipped where there is none, or no playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sandlot import AsyncSession
from sandlot.domain.network.preview_links import LINK_FIELD
from sandlot.testing.eventually import eventually

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SECONDS = 60.0
WITHIN_MS = 60_000  # on half a core
# If it is set, what the browser shows is kept there.
PICTURES = "SANDLOT_TEST_PICTURES"


def chromium_path() -> str:
    """Skips the test where there is no Chromium, or no playwright."""
    pytest.importorskip("playwright", reason="playwright is not installed")
    for name in BROWSERS:
        if found := shutil.which(name):
            return found
    pytest.skip("no Chromium is installed (scripts/engine browser)")


@asynccontextmanager
async def running_chromium() -> AsyncIterator[Any]:
    path = chromium_path()
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        # Root cannot have Chromium's own sandbox, and what it shows here is ours.
        chromium = await playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield chromium
        finally:
            await chromium.close()


@asynccontextmanager
async def opened_page(chromium: Any) -> AsyncIterator[Any]:
    """A page that shares no cookies with others. What goes wrong in its scripts is in ``problems``."""
    page = await chromium.new_page()
    page.set_default_timeout(WITHIN_MS)
    page.problems = []
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    try:
        yield page
    finally:
        await page.close()


async def shows(page: Any, text: str) -> None:
    await page.wait_for_function("text => document.body.innerText.includes(text)", arg=text)


async def picture(page: Any, name: str) -> None:
    if folder := os.environ.get(PICTURES):
        await page.screenshot(path=Path(folder) / f"{name}.png")


async def see_bad_links(chromium: Any, session: AsyncSession, foreign: AsyncSession, name: str) -> None:
    """A visitor reads what is wrong with a link, and sees nothing of the program."""
    await session.start("python3 -m http.server 3000 --bind 127.0.0.1")
    good = (await session.expose(3000)).url
    expired = (await session.expose(3000, expires_s=0.1)).url
    bare, field, token = good.partition(f"?{LINK_FIELD}=")
    if field:  # by host
        other = (await foreign.expose(3000)).url.partition(field)[2]
        forms = {
            "foreign": (f"{bare}{field}{other}", "This link is for another preview"),
            "none": (bare, "No preview here"),
        }
    else:  # by path, where the link of another session leads there
        token, bare = good.rstrip("/").rpartition("/")[2], ""
        forms = {}
    forms["expired"] = (expired, "This link has expired")
    forms["changed"] = (good.replace(token, token[:-4] + "AAAA"), "was not made by this server")
    forms["cut"] = (good.replace(token, token[:-4]), "This is not a link to a preview")

    async def has_expired() -> bool:
        async with opened_page(chromium) as page:
            return bool((await page.goto(expired)).status == 403)

    await eventually(has_expired, SECONDS, "the link has expired")
    for kind, (url, said) in forms.items():
        async with opened_page(chromium) as page:
            answer = await page.goto(url)
            await shows(page, said)
            await picture(page, f"{name}-{kind}")
            assert answer.status in (403, 404)
            # What was refused has left nothing that opens the preview afterwards.
            assert not bare or (await page.goto(bare)).status == 404, kind
