"""Pictures of every page, light and dark, on a desktop and on a phone: ``python -m tests.console.pictures FOLDER``."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from sandlot import AsyncSession
from tests.console.scene import THREAD, administered, conversation, lost, research
from tests.faults.rig import ServerProcess
from tests.service.browsing import running_chromium

KEY = "a-key-for-the-pictures"
SIZES = {"desktop": (1280, 860), "phone": (390, 844)}
SETTLE_MS = 1300
USAGE_MS = 2000
# Also taken without what is below the window, as readme.png, for README.md.
README_PAGE = "story"
README_FORM = "desktop-light"


async def take(folder: Path, only: str = "") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    server = ServerProcess(api_key=KEY, pool_size="3")
    try:
        await server.start()
        async with server.client() as client, running_chromium() as chromium:
            session = await conversation(client)
            await research(client)
            gone = await lost(server, client)
            await administered(server)
            for index in range(4):
                await client.create(thread=f"conversation-{index}", metadata={"user": f"person-{index}"})
            for size, (width, height) in SIZES.items():
                for scheme in ("light", "dark"):
                    context = await chromium.new_context(
                        viewport={"width": width, "height": height}, color_scheme=scheme
                    )
                    page = await context.new_page()
                    page.on("console", lambda said: print("console:", said.text))
                    page.on("pageerror", lambda error: print("error:", error))
                    await see_pages(page, server.url, session, gone, folder, f"{size}-{scheme}", only)
                    await context.close()
    finally:
        await server.mend()
        await server.terminate()
        await server.clean()


async def see_pages(
    page: Any, url: str, session: AsyncSession, gone: AsyncSession, folder: Path, suffix: str, only: str
) -> None:
    async def shot(name: str) -> None:
        await page.wait_for_timeout(SETTLE_MS)
        await page.screenshot(path=folder / f"{name}-{suffix}.png", full_page=True)
        if name == README_PAGE and suffix == README_FORM:
            await page.screenshot(path=folder / "readme.png")

    await page.goto(f"{url}/console/")
    await shot("login")
    await page.get_by_label("API key").fill(KEY)
    await page.get_by_role("button", name="Log in").click()
    await page.get_by_role("heading", name="Overview").wait_for()
    places = {
        "overview": "/",
        "sessions": "/sessions",
        "session": f"/sessions/{session.id}",
        "lost": f"/sessions/{gone.id}",
        "commands": f"/sessions/{session.id}/execs",
        "files": f"/sessions/{session.id}/files",
        "snapshots": f"/sessions/{session.id}/snapshots",
        "network": f"/sessions/{session.id}/network",
        "history": f"/sessions/{session.id}/history",
        "recording": f"/sessions/{session.id}/recording",
        "threads": "/threads",
        "story": f"/threads/{THREAD.replace(' ', '%20')}",
        "fleet": "/fleet",
        "environments": "/admin/environments",
        "keys": "/admin/keys",
        "tenants": "/admin/tenants",
        "webhooks": "/admin/webhooks",
        "terminal": f"/sessions/{session.id}/terminal",  # last: it becomes a step of the story
    }
    for name, path in places.items():
        if only and only != name:
            continue
        await page.goto(f"{url}/console{path}")
        await page.wait_for_load_state("load")
        await act(page, name)
        await shot(name)


async def act(page: Any, name: str) -> None:
    if name == "session":  # until the charts have lines
        await page.wait_for_timeout(3 * USAGE_MS)
    if name == "terminal":
        opens = page.get_by_role("button", name="Open a terminal", exact=True)
        await opens.or_(page.get_by_text("Connected.")).first.wait_for()
        if await opens.count():
            await opens.click()
        await page.get_by_text("Connected.").wait_for()
        await page.keyboard.type("ls --color -la; git --version\n")
    if name == "files":
        await page.get_by_role("button", name="data/").click()
        await page.get_by_role("button", name="report.csv", exact=False).first.click()
    if name == "snapshots":
        await page.get_by_role("button", name="Compare").first.click()
    if name == "commands":
        await page.get_by_role("button", name="for i in").click()
    if name == "recording":
        await page.get_by_label("Position").fill("1000")


if __name__ == "__main__":
    asyncio.run(take(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else ""))
