"""Pictures of every page and dialog, light and dark, on a desktop and on a phone.

``python -m tests.console.pictures FOLDER [NAME …]``: of a server, then of a fleet, after agents have worked there. With
names, only of these. ``FOLDER/readme.png`` is the one that README.md shows.
"""

from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from PIL import Image

from tests.btrfs_storage import btrfs_storage
from tests.console.conftest import KEY, Console
from tests.console.stage.scene import administered, played
from tests.console.stage.sights import FORMS, Sight, in_each_form, sights_of, sights_of_fleet
from tests.faults.rig import ServerProcess
from tests.fleet_faults.rig import KEY as FLEET_KEY
from tests.fleet_faults.rig import Fleet, running
from tests.service.browsing import opened_page, running_chromium

# Also taken without what is below the window.
README_SIGHT = "story"
README_FORM = "desktop-light"


async def take(folder: Path, names: set[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    async with running_chromium() as chromium:
        with btrfs_storage() as storage:
            await _of_a_server(chromium, storage, folder, names)
        await _of_a_fleet(chromium, folder, names)


async def _of_a_server(chromium: Any, storage: Path, folder: Path, names: set[str]) -> None:
    server = ServerProcess(api_key=KEY, pool_size="3", workspace_store="btrfs", storage_dir=str(storage))
    try:
        await server.start()
        scene = await played(server)
        await administered(server)
        async with server.client() as client, opened_page(chromium) as page:
            for number in range(4):
                await client.create(thread=f"conversation-{number}", metadata={"user": f"person-{number}"})
            console = Console(server, client, page)
            await _shots(page, folder, _entered(console, KEY, "login"), server.url, names)
            await _shots(page, folder, sights_of(scene), server.url, names)
    finally:
        await server.mend()
        await server.terminate()
        await server.clean()


async def _of_a_fleet(chromium: Any, folder: Path, names: set[str]) -> None:
    async with running(Fleet(workers=3, coordinators=1)) as fleet:
        front = fleet.coordinators[0]
        scene = await played(front, FLEET_KEY)
        await administered(front, FLEET_KEY)
        async with fleet.client() as client, opened_page(chromium) as page:
            await client.create(thread="of-the-second-worker")
            console = Console(front, client, page)
            await _shots(page, folder, _entered(console, FLEET_KEY, "fleet-login"), front.url, names)
            await _shots(page, folder, sights_of_fleet(scene), front.url, names)
            async for session in client.sessions():
                await session.delete()


def _entered(console: Console, key: str, name: str) -> list[Sight]:
    """The way in: an empty form, a wrong key, and then the right one, which is not shown."""

    async def wrong(_: Any) -> None:
        await console.log_in("not-the-key-of-this-server")

    async def right(_: Any) -> None:
        await console.log_in(key)

    return [
        Sight(name, "/", "input"),
        Sight(f"{name}-refused", "/", ".failure", wrong),
        Sight("", "/", ".figures", right),
    ]


async def _shots(page: Any, folder: Path, sights: Iterable[Sight], url: str, names: set[str]) -> None:
    for sight in sights:
        if names and sight.name and sight.name not in names:
            continue
        await page.set_viewport_size(FORMS["desktop-light"][0])
        await sight.open(page, url)
        if not sight.name:
            continue
        await page.mouse.move(0, 0)
        async for form in in_each_form(page):
            # What is around a dialog cannot be scrolled.
            whole = await page.locator("dialog").count() == 0
            await page.screenshot(path=folder / f"{sight.name}-{form}.png", full_page=whole)
            if (sight.name, form) == (README_SIGHT, README_FORM):
                small = Image.open(io.BytesIO(await page.screenshot())).convert("RGB").quantize(256)
                small.save(folder / "readme.png", optimize=True)
        print(sight.name, *page.problems, flush=True)


if __name__ == "__main__":
    asyncio.run(take(Path(sys.argv[1]), set(sys.argv[2:])))
