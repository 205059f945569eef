"""A real fleet as its console and ``sandlot top`` show it, each through a coordinator."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import httpx
import pytest
import pytest_asyncio
from textual.pilot import Pilot

from sandlot.api.console.files import DIST, INDEX
from sandlot.cli.top.app import TopApp
from sandlot.cli.top.source import Source
from sandlot.client.async_client import AsyncClient
from sandlot.client.http.administrator import Administrator
from sandlot.client.http.fleet import FleetOperator
from sandlot.domain.callers.principal import USER_SCOPES, Scope
from sandlot.wire.key_bodies import CreateKeyBody
from tests.console.conftest import WATCH, Console
from tests.console.stage.axe import found_in_each_form
from tests.console.stage.scene import administered, played
from tests.console.stage.sights import sights_of_fleet
from tests.fleet_faults.rig import KEY, Fleet, running
from tests.service.browsing import opened_page, picture, shows
from tests.unit.cli.test_top import SIZE, becomes, screen_text

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def fleet() -> AsyncIterator[Fleet]:
    if not (DIST / INDEX).is_file():
        pytest.skip("the console is not built (make console)")
    async with running(Fleet(workers=2, coordinators=1)) as fleet:
        yield fleet


async def test_the_console_of_a_coordinator(fleet: Fleet, chromium: Any) -> None:
    """Logs in, sees both workers, types in a terminal, and drains the worker until it takes sessions again."""
    front = fleet.coordinators[0]
    worker = fleet.workers[0]
    async with fleet.client() as client, opened_page(chromium) as page:
        await page.add_init_script(WATCH)
        console = Console(front, client, page)
        await console.go("/")
        await console.log_in(KEY)
        await page.get_by_role("heading", name="Overview").wait_for()
        session = await client.thread("seen-in-the-console")
        await console.go("/sessions")
        await page.get_by_role("link", name=session.id).click()
        await page.get_by_role("link", name="Terminal", exact=True).click()
        await console.open_terminal()
        await page.keyboard.type("echo $((6 * 7))-of-a-worker | tee seen.txt\n")
        await console.screen_shows("42-of-a-worker")
        assert await session.files.read_text("seen.txt") == "42-of-a-worker\n"
        await page.get_by_role("link", name="Fleet", exact=True).click()
        for member in fleet.workers:
            await page.get_by_role("heading", name=member.owner).wait_for()
        await picture(page, "console-fleet")
        card = page.locator("article", has=page.get_by_role("heading", name=worker.owner))
        for verb, told in (("Drain", 1), ("Undrain", 0)):
            await card.get_by_role("button", name=verb, exact=True).click()
            await page.get_by_role("dialog").get_by_role("button", name=verb, exact=True).click()
            other = "Undrain" if verb == "Drain" else "Drain"
            await card.get_by_role("button", name=other, exact=True).wait_for()
            assert await card.locator(".badge", has_text="draining").count() == told
            body = await _asked(front.url, KEY, "/v1/fleet")
            draining = {one["id"] for one in body["workers"] if one["draining"]}
            assert draining == ({worker.owner} if told else set())
        await console.check()
        await session.delete()


async def test_a_tenant_sees_nothing_of_others(fleet: Fleet, chromium: Any) -> None:
    """What a fleet lists has the caller's own sessions alone, and a tenant does not learn of the fleet."""
    front = fleet.coordinators[0]
    keys = {tenant: await fleet.key_of(tenant) for tenant in ("acme", "globex")}
    own: dict[str, set[str]] = {}
    for tenant, key in keys.items():
        async with fleet.client(key=key) as client:
            session = await client.thread(f"a-thread-of-{tenant}")
            await session.run("echo hi")
            own[tenant] = {session.id}
    for tenant, key in keys.items():
        listed = (await _asked(front.url, key, "/v1/sessions"))["sessions"]
        assert {one["id"] for one in listed} == own[tenant]
        events = (await _asked(front.url, key, "/v1/events"))["events"]
        assert {one["session_id"] for one in events} - {None} == own[tenant]
        assert {one["tenant"] for one in events} == {tenant}
        health = await _asked(front.url, key, "/v1/health")
        assert health["active_sessions"] == 1
        assert (health["pools"], health["problems"]) == ({}, [])
        for path in ("/v1/fleet", "/v1/fleet/sessions", "/v1/fleet/sessions?tenant=globex", "/metrics"):
            assert await _status(front.url, key, path) == 403, path
        for method in ("drain", "undrain"):
            path = f"/v1/fleet/workers/{fleet.workers[0].owner}/{method}"
            assert await _status(front.url, key, path, "POST") == 403
    operator = await _operator_key(front.url, "acme")
    placed = (await _asked(front.url, operator, "/v1/fleet/sessions"))["sessions"]
    assert {one["session"]["id"] for one in placed} == own["acme"]
    async with opened_page(chromium) as page, fleet.client(key=keys["acme"]) as client:
        console = Console(front, client, page)
        await console.go("/sessions")
        await console.log_in(keys["acme"])
        await page.get_by_role("link", name=next(iter(own["acme"]))).wait_for()
        assert next(iter(own["globex"])) not in await page.content()
        await page.get_by_role("link", name="Fleet", exact=True).click()
        await shows(page, Scope.FLEET_OPERATE.value)
        assert fleet.workers[0].owner not in await page.content()
    async with fleet.client(key=keys["acme"]) as acme, fleet.client(key=keys["globex"]) as globex:
        for client in (acme, globex):
            async for session in client.sessions():
                await session.delete()


async def test_top_shows_a_fleet(fleet: Fleet) -> None:
    front = fleet.coordinators[0]
    service = FleetOperator(front.url, KEY)
    try:
        async with fleet.client() as client:
            session = await client.thread("seen-in-top")
            await session.run("echo one")
            app = TopApp(Source(AsyncClient(service=service)), front.url)
            async with app.run_test(size=SIZE) as pilot:
                await becomes(pilot, lambda: session.id in screen_text(pilot))
                for worker in fleet.workers:
                    await becomes(pilot, partial(_tells, pilot, worker.owner))
                await becomes(pilot, lambda: re.search(r"Commands: [1-9]\d* this minute", screen_text(pilot)))
                running_one = await session.start("echo seen-by-top; sleep 600")
                await pilot.press("enter")
                await becomes(pilot, lambda: "seen-by-top" in screen_text(pilot))
                await pilot.press("k")
                await running_one.wait()
                await becomes(pilot, lambda: re.search(r"sleep 600 exit \d+", screen_text(pilot)))
            await session.delete()
    finally:
        await service.close()


async def test_axe_finds_nothing_on_a_fleet(fleet: Fleet, chromium: Any, axe: str) -> None:
    front = fleet.coordinators[0]
    scene = await played(front, KEY)
    await administered(front, KEY)
    problems: dict[str, list[str]] = {}
    async with fleet.client() as client, opened_page(chromium) as page:
        await page.add_init_script(WATCH)
        console = Console(front, client, page)
        await console.go("/")
        await console.log_in(KEY)
        await page.get_by_role("heading", name="Overview").wait_for()
        for sight in sights_of_fleet(scene):
            await sight.open(page, front.url)
            problems |= await found_in_each_form(page, axe, sight.name)
            await console.check()
        async for session in client.sessions():
            await session.delete()
    assert problems == {}, json.dumps(problems, indent=1)


def _tells(pilot: Pilot[Any], text: str) -> bool:
    return text in screen_text(pilot)


async def _operator_key(url: str, tenant: str) -> str:
    administrator = Administrator(url, KEY)
    scopes = sorted(scope.value for scope in {*USER_SCOPES, Scope.FLEET_OPERATE})
    try:
        return (
            await administrator.create_key(CreateKeyBody("operator", tenant=tenant, scopes=scopes))
        ).secret
    finally:
        await administrator.close()


async def _asked(url: str, key: str, path: str) -> dict[str, Any]:
    async with httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {key}"}) as http:
        answer: dict[str, Any] = (await http.get(path, timeout=20)).raise_for_status().json()
        return answer


async def _status(url: str, key: str, path: str, method: str = "GET") -> int:
    async with httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {key}"}) as http:
        return (await http.request(method, path, timeout=20)).status_code
