"""A Chromium with a page of the console that is logged in."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from bench.server import Served

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
WIDTH, HEIGHT = 1280, 860


@asynccontextmanager
async def logged_in(served: Served, *scripts: str) -> AsyncIterator[Any]:
    """``scripts`` run in the page before its own."""
    from playwright.async_api import async_playwright

    found = [path for name in PROGRAMS if (path := shutil.which(name))]
    if not found:
        raise SystemExit("No Chromium is installed. Run scripts/engine browser.")
    async with async_playwright() as playwright:
        # Root cannot have Chromium's own sandbox, and what it shows here is ours.
        chromium = await playwright.chromium.launch(executable_path=found[0], args=["--no-sandbox"])
        try:
            page = await chromium.new_page(viewport={"width": WIDTH, "height": HEIGHT})
            for script in scripts:
                await page.add_init_script(script)
            await page.goto(f"{served.url}/console/")
            await page.get_by_label("API key").fill(served.api_key or "")
            await page.get_by_role("button", name="Log in").click()
            await page.get_by_role("heading", name="Overview").wait_for()
            yield page
        finally:
            await chromium.close()
