"""A real Chromium that looks at previews. Tests are skipped where there is none, or no playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WITHIN_MS = 60_000  # on half a core
# If it is set, what the browser shows is kept there.
PICTURES = "SANDLOT_TEST_PICTURES"


def _path() -> str:
    pytest.importorskip("playwright", reason="playwright is not installed")
    for name in BROWSERS:
        if found := shutil.which(name):
            return found
    pytest.skip("no Chromium is installed (scripts/engine browser)")


@asynccontextmanager
async def running_chromium() -> AsyncIterator[Any]:
    path = _path()
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
