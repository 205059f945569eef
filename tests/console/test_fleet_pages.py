"""What the console of a coordinator shows of its workers, on a real fleet."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from sandlot.api.console.files import DIST, INDEX
from sandlot.client.http.fleet import FleetOperator
from tests.console.conftest import WATCH, Console
from tests.fleet_faults.rig import KEY, Fleet, running
from tests.service.browsing import opened_page, shows

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def fleet() -> AsyncIterator[Fleet]:
    if not (DIST / INDEX).is_file():
        pytest.skip("the console is not built (make console)")
    async with running(Fleet(workers=2, coordinators=1)) as fleet:
        yield fleet


@pytest_asyncio.fixture(loop_scope="session")
async def console(fleet: Fleet, chromium: Any) -> AsyncIterator[Console]:
    async with fleet.client() as client, opened_page(chromium) as page:
        await page.add_init_script(WATCH)
        page.set_default_timeout(20_000)
        opened = Console(fleet.coordinators[0], client, page)
        await opened.go("/")
        await opened.log_in(KEY)
        await page.get_by_role("heading", name="Overview").wait_for()
        yield opened
        await opened.check()


async def _places(fleet: Fleet, tenant: str | None = None) -> dict[str, str]:
    """The sessions of a tenant, and the worker of each."""
    operator = FleetOperator(fleet.coordinators[0].url, KEY)
    try:
        return {one.session.id: one.worker async for one in operator.placed_sessions(tenant)}
    finally:
        await operator.close()


def _listed(page: Any, worker: str, session: str) -> Any:
    return page.get_by_role("region", name=f"Sessions of {worker}").get_by_role("link", name=session)


async def test_each_worker_lists_its_sessions(fleet: Fleet, console: Console) -> None:
    page = console.page
    sessions = [await console.client.create() for _ in range(3)]
    async with fleet.client(key=await fleet.key_of("acme")) as other:
        theirs = await other.create()
        await console.go("/fleet")
        for placed, worker in (await _places(fleet)).items():
            await _listed(page, worker, placed).wait_for()
        await shows(page, "1 more session of other tenants.")
        # Nobody asks for it: the page hears of it.
        sessions.append(await console.client.create())
        await _listed(page, (await _places(fleet))[sessions[-1].id], sessions[-1].id).wait_for()
        await page.get_by_label("Tenant whose sessions are listed").fill("acme")
        await page.get_by_role("button", name="List", exact=True).click()
        await _listed(page, (await _places(fleet, "acme"))[theirs.id], theirs.id).wait_for()
        await page.get_by_role("link", name=sessions[0].id).wait_for(state="detached")
        await theirs.delete()
    await page.get_by_label("Tenant whose sessions are listed").fill("")
    await page.get_by_role("button", name="List", exact=True).click()
    worker = (await _places(fleet))[sessions[0].id]
    await _listed(page, worker, sessions[0].id).click()
    await page.get_by_role("heading", name=sessions[0].id).wait_for()
    for session in sessions:
        await session.delete()


async def test_a_worker_shows_its_load(fleet: Fleet, console: Console) -> None:
    page = console.page
    worker = fleet.workers[0].owner
    await console.go("/fleet")
    card = page.locator("article", has=page.get_by_role("heading", name=worker))
    for meter in ("Sessions: 0 of ", "Memory: ", "Processors: "):
        await card.get_by_role("meter", name=meter).wait_for()


async def test_the_overview_shows_the_load_of_each_worker(fleet: Fleet, console: Console) -> None:
    page = console.page
    await console.go("/")
    for worker in fleet.workers:
        card = page.locator("article", has=page.get_by_role("heading", name=worker.owner))
        await card.get_by_role("meter", name="Sessions: 0 of ").wait_for()
    await shows(page, "ready on all workers")


async def test_an_environment_shows_how_far_each_worker_is(fleet: Fleet, console: Console) -> None:
    page = console.page
    await console.go("/admin/environments")
    card = page.locator("article", has=page.get_by_role("heading", name="base", exact=True))
    await card.get_by_text("on 2 workers").wait_for()
    missing = [
        one
        for environment in (await console.client.catalogue()).environments
        for one in environment.readiness
        if one.state == "missing"
    ]
    for one in missing:
        await page.get_by_text(one.reason).first.wait_for()
