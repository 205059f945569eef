"""Real web apps in real sandboxes, seen in a real Chromium: Vite and Streamlit, with their reload over a WebSocket.

Here from a single server, with a host for each preview. Skipped where there is no Chromium, no playwright or no
Node to install.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from sandlot.domain.network.preview_links import LINK_FIELD
from tests.faults.rig import ServerProcess
from tests.service.apps import (
    copy_streamlit,
    copy_vite,
    see_streamlit_reload,
    see_vite_reload,
    start_streamlit,
    start_vite,
)
from tests.service.browsing import opened_page, picture, running_chromium, see_bad_links, shows

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

KEY = "a-key-for-the-tests-alone"


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def chromium() -> AsyncIterator[Any]:
    async with running_chromium() as chromium:
        yield chromium


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def server(chromium: Any) -> AsyncIterator[ServerProcess]:  # not started where there is no Chromium
    server = ServerProcess(api_key=KEY)
    server.environ["SANDLOT_PREVIEW_DOMAIN"] = f"http://*.localhost:{server.port}"
    try:
        await server.start()
        yield server
    finally:
        await server.mend()
        await server.terminate()
        await server.clean()


@pytest.fixture(scope="module")
def apps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("apps")


@pytest.mark.parametrize("environment", ["base", "gvisor"])
async def test_vite(server: ServerProcess, chromium: Any, apps: Path, environment: str) -> None:
    async with server.client() as client, client.create(environment=environment) as session:
        await copy_vite(session, apps)
        url = (await start_vite(session, 5173)).url
        async with opened_page(chromium) as page:
            await see_vite_reload(page, session, url, f"vite-host-{environment}")
            assert LINK_FIELD not in page.url
            assert await page.evaluate("document.cookie") == ""
            await session.unexpose(5173)
            await page.goto(url)
            await shows(page, "No preview here")
            await picture(page, "ended")


async def test_streamlit(server: ServerProcess, chromium: Any, apps: Path) -> None:
    async with server.client() as client, client.create() as session:
        await copy_streamlit(session, apps)
        url = (await start_streamlit(session, 8501)).url
        async with opened_page(chromium) as page:
            await see_streamlit_reload(page, session, url, "streamlit-host")


async def test_no_program_yet(server: ServerProcess, chromium: Any) -> None:
    async with server.client() as client, client.create() as session, opened_page(chromium) as page:
        await page.goto((await session.expose(3000)).url)
        await shows(page, "Nothing listens on port 3000")
        await shows(page, "python3 -m http.server 3000")
        await picture(page, "nothing-listens")


async def test_bad_links(server: ServerProcess, chromium: Any) -> None:
    async with server.client() as client, client.create() as session, client.create() as foreign:
        await see_bad_links(chromium, session, foreign, "link")
