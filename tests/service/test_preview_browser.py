"""Real web apps in real sandboxes, seen in a real Chromium: Vite, with its hot reload over a WebSocket.

Skipped where there is no Chromium, no playwright or no Node to install.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from sandlot import AsyncSession
from sandlot.domain.errors import NotFound
from sandlot.testing.eventually import eventually
from tests.faults.rig import ServerProcess
from tests.fleet_faults.rig import Fleet
from tests.service.apps import VITE_APP, browser, copy_in, vite_folder

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

WITHIN_MS = 90_000  # on half a core
SECONDS = 60.0
KEY = "a-key-for-the-tests-alone"
# If it is set, what the browser shows is kept there.
PICTURES = "SANDLOT_TEST_PICTURES"


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def by_host() -> AsyncIterator[ServerProcess]:
    server = ServerProcess(api_key=KEY)
    server.environ["SANDLOT_PREVIEW_DOMAIN"] = f"http://*.localhost:{server.port}"
    async with _running(server):
        yield server


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def by_path() -> AsyncIterator[ServerProcess]:
    server = ServerProcess(api_key=KEY)
    async with _running(server):
        yield server


@asynccontextmanager
async def _running(server: ServerProcess) -> AsyncIterator[None]:
    try:
        await server.start()
        yield
    finally:
        await server.mend()
        await server.terminate()
        await server.clean()


@asynccontextmanager
async def opened_page() -> AsyncIterator[Any]:
    """A page of a new browser. What goes wrong in it is in ``problems``."""
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        chromium = await playwright.chromium.launch(executable_path=browser(), args=["--no-sandbox"])
        try:
            page = await chromium.new_page()
            page.set_default_timeout(WITHIN_MS)
            page.problems = []
            page.on("pageerror", lambda error: page.problems.append(str(error)))
            yield page
        finally:
            await chromium.close()


async def picture(page: Any, name: str) -> None:
    if folder := os.environ.get(PICTURES):
        await page.screenshot(path=Path(folder) / f"{name}.png")


async def shows(page: Any, text: str) -> None:
    await page.wait_for_function("text => document.body.innerText.includes(text)", arg=text)


async def _vite(session: AsyncSession, tmp: Path, **how: Any) -> str:
    """Starts Vite in the sandbox, and returns the link to it."""
    await copy_in(session, vite_folder(tmp), "/workspace/app")
    for name, text in VITE_APP.items():
        await session.files.write(f"app/{name}", text.encode())
    preview = await session.expose(5173, **how)
    base = f"{preview.prefix}/"
    await session.start(
        f"cd app && chmod +x node && ./node node_modules/vite/bin/vite.js --port 5173 --strictPort --base {base}"
    )
    await _answers(session, 5173)
    return preview.url


async def _answers(session: AsyncSession, port: int) -> None:
    async def listens() -> bool:
        try:
            await (await session.client.service.connect(session.id, port)).close()
        except NotFound:
            return False
        return True

    await eventually(listens, SECONDS * 2, f"port {port} listens")


async def _hot_reload(page: Any, session: AsyncSession, url: str, name: str) -> None:
    await page.goto(url)
    await shows(page, "first")
    await picture(page, f"{name}-first")
    await session.files.write("app/word.js", b'export const word = "second";\n')
    await shows(page, "second")
    assert await page.evaluate("window.loads") == 1, "the page was loaded again, so nothing was hot"
    await picture(page, f"{name}-second")
    assert page.problems == []


@pytest.mark.parametrize("environment", ["base", "gvisor"])
async def test_vite_by_host(by_host: ServerProcess, tmp_path: Path, environment: str) -> None:
    browser()
    async with by_host.client() as client, client.create(environment=environment) as session:
        url = await _vite(session, tmp_path)
        async with opened_page() as page:
            await _hot_reload(page, session, url, f"vite-host-{environment}")
            assert "sandlot_link" not in page.url
            assert await page.evaluate("document.cookie") == ""
            await session.unexpose(5173)
            await page.goto(url)
            await shows(page, "No preview here")
            await picture(page, "ended")


async def test_vite_by_path(by_path: ServerProcess, tmp_path: Path) -> None:
    """The page has no origin, and nothing of the API answers it."""
    browser()
    async with by_path.client() as client, client.create() as session:
        url = await _vite(session, tmp_path, keep_prefix=True)
        async with opened_page() as page:
            await _hot_reload(page, session, url, "vite-path")
            assert await page.evaluate("self.origin") == "null"
            for attempt in (
                "localStorage.length",
                "document.cookie",
                "navigator.serviceWorker.register('./sw.js')",
                f"fetch('{by_path.url}/v1/sessions')",
                f"fetch('{by_path.url}/health').then(answer => answer.text())",
                f"new Promise((ok, no) => {{ const s = new WebSocket('{by_path.url.replace('http', 'ws')}"
                "/v1/sessions/x/ports/1/connect'); s.onopen = ok; s.onerror = no; })",
            ):
                worked = f"(async () => {{ try {{ await ({attempt}); return true; }} catch {{ return false; }} }})()"
                assert await page.evaluate(worked) is False, attempt


async def test_vite_through_a_coordinator(tmp_path: Path) -> None:
    browser()
    fleet = Fleet(workers=1, coordinators=1)
    front = fleet.coordinators[0]
    front.environ["SANDLOT_PREVIEW_DOMAIN"] = f"http://*.localhost:{front.port}"
    try:
        await fleet.start()
        async with fleet.client() as client, client.create() as session:
            url = await _vite(session, tmp_path)
            assert url.startswith("http://5173-")
            async with opened_page() as page:
                await _hot_reload(page, session, url, "vite-coordinator")
    finally:
        await fleet.clean()


async def test_no_program_yet(by_host: ServerProcess) -> None:
    browser()
    async with by_host.client() as client, client.create() as session, opened_page() as page:
        await page.goto((await session.expose(3000)).url)
        await shows(page, "Nothing listens on port 3000")
        await shows(page, "python3 -m http.server 3000")
        await picture(page, "nothing-listens")
