"""Real web apps in a real Chromium, through the coordinators of a fleet.

One coordinator has a host for each preview, the other a path. The rest is as in ``test_preview_browser``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from sandlot import AsyncSession
from tests.fleet_faults.rig import Fleet
from tests.service.apps import (
    copy_streamlit,
    copy_vite,
    see_streamlit_reload,
    see_vite_reload,
    start_streamlit,
    start_vite,
)
from tests.service.browsing import opened_page, running_chromium, see_bad_links

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

BY_HOST, BY_PATH = 0, 1


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def chromium() -> AsyncIterator[Any]:
    async with running_chromium() as chromium:
        yield chromium


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def fleet(chromium: Any) -> AsyncIterator[Fleet]:  # not started where there is no Chromium
    fleet = Fleet(workers=1, coordinators=2)
    front = fleet.coordinators[BY_HOST]
    front.environ["SANDLOT_PREVIEW_DOMAIN"] = f"http://*.localhost:{front.port}"
    try:
        await fleet.start()
        yield fleet
    finally:
        await fleet.clean()


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def session(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[AsyncSession]:
    """Has both apps, and makes previews with a host."""
    apps = tmp_path_factory.mktemp("apps")
    async with fleet.client(BY_HOST) as client, client.create() as session:
        await copy_vite(session, apps)
        await copy_streamlit(session, apps)
        yield session


async def test_vite_by_host(session: AsyncSession, chromium: Any) -> None:
    url = (await start_vite(session, 5173)).url
    assert url.startswith("http://5173-")
    async with opened_page(chromium) as page:
        await see_vite_reload(page, session, url, "vite-coordinator")


async def test_vite_by_path(fleet: Fleet, session: AsyncSession, chromium: Any) -> None:
    """The page has no origin, and nothing of the API answers it."""
    front = fleet.coordinators[BY_PATH].url
    async with fleet.client(BY_PATH) as client, opened_page(chromium) as page:
        by_path = await client.get(session.id)
        url = (await start_vite(by_path, 5174)).url
        assert url.startswith(f"{front}/preview/")
        await see_vite_reload(page, by_path, url, "vite-path")
        assert await page.evaluate("self.origin") == "null"
        for attempt in (
            "localStorage.length",
            "document.cookie",
            "navigator.serviceWorker.register('./sw.js')",
            f"fetch('{front}/v1/sessions')",
            f"fetch('{front}/health').then(answer => answer.text())",
            f"new Promise((ok, no) => {{ const s = new WebSocket('{front.replace('http', 'ws')}"
            "/v1/sessions/x/ports/1/connect'); s.onopen = ok; s.onerror = no; })",
        ):
            worked = (
                f"(async () => {{ try {{ await ({attempt}); return true; }} catch {{ return false; }} }})()"
            )
            assert await page.evaluate(worked) is False, attempt


async def test_streamlit_by_path(fleet: Fleet, session: AsyncSession, chromium: Any) -> None:
    async with fleet.client(BY_PATH) as client, opened_page(chromium) as page:
        by_path = await client.get(session.id)
        url = (await start_streamlit(by_path, 8501)).url
        await see_streamlit_reload(page, by_path, url, "streamlit-path")


@pytest.mark.parametrize("front", [BY_HOST, BY_PATH])
async def test_bad_links(fleet: Fleet, chromium: Any, front: int) -> None:
    async with fleet.client(front) as client, client.create() as session, client.create() as foreign:
        await see_bad_links(chromium, session, foreign, f"link-coordinator-{front}")
