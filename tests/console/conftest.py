"""One server and one browser for all tests of the console."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from sandlot import AsyncClient
from sandlot.api.console.files import DIST, INDEX
from tests.btrfs_storage import btrfs_storage
from tests.console.stage.scene import Scene, administered, played
from tests.faults.rig import ServerProcess
from tests.service.browsing import opened_page, running_chromium

KEY = "a-key-for-the-console-alone"
SCREEN_SECONDS = 20.0
# What the page's policy refused, and what a script of somebody else's would do.
WATCH = """
window.__violations = [];
document.addEventListener('securitypolicyviolation', (event) =>
    window.__violations.push(event.violatedDirective + ' ' + event.blockedURI + ' ' + event.sourceFile));
window.__ran = [];
for (const name of ['alert', 'confirm', 'prompt']) window[name] = (text) => { window.__ran.push(text); return true; };
"""


@dataclass
class Console:
    """A page of the console, logged in, and a client of the same server."""

    server: ServerProcess
    client: AsyncClient
    page: Any
    # Where the page finds the server, if it is not where the server is.
    url: str = ""

    @property
    def measures_files(self) -> bool:
        """Whether its store tells what files use."""
        return self.server.environ.get("SANDLOT_WORKSPACE_STORE") == "btrfs"

    async def go(self, path: str) -> None:
        await self.page.goto(f"{self.url or self.server.url}/console{path}")

    async def log_in(self, key: str = KEY) -> None:
        await self.page.get_by_label("API key").fill(key)
        await self.page.get_by_role("button", name="Log in").click()

    async def open_terminal(self) -> None:
        """On the tab of terminals. What the screen shows can be read then."""
        await self.page.get_by_role("button", name="Open a terminal", exact=True).click()
        await self.page.get_by_text("Connected.").wait_for()
        await self.page.get_by_label("For screen readers").check()
        await self.page.locator(".xterm-helper-textarea").focus()

    async def screen_shows(self, text: str, within_s: float = SCREEN_SECONDS) -> None:
        """What the terminal shows, as it writes it for screen readers."""
        await self.page.wait_for_function(
            "text => document.querySelector('.xterm-accessibility')?.innerText.includes(text)",
            arg=text,
            timeout=within_s * 1000,
        )

    async def screen_rows(self) -> list[str]:
        """What the terminal shows now, row by row."""
        text: str = await self.page.evaluate("document.querySelector('.xterm-accessibility-tree').innerText")
        return [row.rstrip() for row in text.splitlines()]

    async def check(self) -> None:
        """Nothing of somebody else's has run, and the policy had nothing to refuse."""
        assert await self.page.evaluate("window.__ran") == []
        assert await self.page.evaluate("window.__violations") == []
        assert self.page.problems == []


@asynccontextmanager
async def opened_console(server: ServerProcess, chromium: Any, url: str = "") -> AsyncIterator[Console]:
    async with server.client() as client, opened_page(chromium) as page:
        await page.add_init_script(WATCH)
        page.set_default_timeout(20_000)
        opened = Console(server, client, page, url)
        await opened.go("/")
        await opened.log_in()
        await page.get_by_role("heading", name="Overview").wait_for()
        yield opened
        await opened.check()


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def chromium() -> AsyncIterator[Any]:
    async with running_chromium() as chromium:
        yield chromium


@pytest.fixture(scope="session")
def storage() -> Iterator[Path | None]:
    """None on a machine without btrfs: its files are in Docker's volumes, which nobody measures."""
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(btrfs_storage())
        except pytest.skip.Exception:
            folder = None
        yield folder


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def server(chromium: Any, storage: Path | None) -> AsyncIterator[ServerProcess]:
    """Not started where there is no Chromium."""
    if not (DIST / INDEX).is_file():
        pytest.skip("the console is not built (make console)")
    # Its sandboxes may ask for hosts on this machine, where those of the tests are.
    settings: dict[str, Any] = {"egress_allow": "127.0.0.0/8", "egress_ceiling": "any"}
    if storage is not None:
        settings |= {"workspace_store": "btrfs", "storage_dir": str(storage)}
    server = ServerProcess(api_key=KEY, pool_size="3", **settings)
    try:
        await server.start()
        yield server
    finally:
        await server.mend()
        await server.terminate()
        await server.clean()


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def scene(server: ServerProcess) -> Scene:
    return await played(server)


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def administration(server: ServerProcess) -> None:
    """The pages for administrators have something to show."""
    await administered(server)


@pytest_asyncio.fixture(loop_scope="session")
async def console(server: ServerProcess, chromium: Any) -> AsyncIterator[Console]:
    async with opened_console(server, chromium) as console:
        yield console


@pytest.fixture(scope="session")
def axe() -> str:
    script = Path(__file__).parents[2] / "console/node_modules/axe-core/axe.min.js"
    if not script.is_file():
        pytest.skip("axe-core is not installed (make console)")
    return script.read_text()
