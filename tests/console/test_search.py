"""Search looks into all sessions, however many pages they are on, and says so if it does not."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.console.conftest import Console
from tests.service.browsing import shows

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]


async def _many(console: Console, count: int) -> list[dict[str, Any]]:
    """As many sessions as that in the API's answers, which are those of a real server otherwise."""
    page = console.page
    headers = {"Authorization": f"Bearer {console.server.api_key}"}
    async with console.client.create() as session:
        url = f"{console.server.url}/v1/sessions/{session.id}"
        known = await (await page.request.get(url, headers=headers)).json()
    many = [{**known, "id": f"ses_{index:032x}", "thread": f"thread-{index}"} for index in range(count)]

    async def answer(route: Any) -> None:
        url = urlsplit(route.request.url)
        asked = {name: value for name, [value] in parse_qs(url.query).items()}
        if found := re.fullmatch(r"/v1/sessions/(ses_[0-9a-f]{32})", url.path):
            await route.fulfill(json=next(one for one in many if one["id"] == found[1]))
            return
        if "thread" in asked:
            await route.fulfill(
                json={"sessions": [one for one in many if one["thread"] == asked["thread"]], "next": None}
            )
            return
        after, limit = int(asked.get("after", "0")), int(asked["limit"])
        more = str(after + limit) if after + limit < count else None
        await route.fulfill(json={"sessions": many[after : after + limit], "next": more})

    await page.route(re.compile(r"/v1/sessions(\?|/ses_[0-9a-f]{32}$)"), answer)
    return many


async def test_a_session_of_the_last_page_is_found(console: Console) -> None:
    page = console.page
    many = await _many(console, 1_700)
    await console.go("/sessions")
    await page.get_by_role("status").get_by_text("1,700 sessions", exact=True).wait_for()
    assert await page.locator("tbody tr a").first.inner_text() == many[-1]["id"]  # the newest first
    await page.get_by_label("Search").fill(" thread-1655 ")
    await page.get_by_role("status").get_by_text("1 session", exact=True).wait_for()
    await page.get_by_role("link", name=many[1_655]["id"]).wait_for()
    await console.go("/threads")
    await page.get_by_label("Thread").fill(" thread-1655 ")
    await page.get_by_role("link", name="thread-1655").wait_for()
    await console.check()


async def test_all_snapshots_of_a_session_are_there(console: Console) -> None:
    page = console.page
    async with console.client.create() as session:
        await session.workspace.snapshot("real")
        headers = {"Authorization": f"Bearer {console.server.api_key}"}
        url = f"{console.server.url}/v1/snapshots?session={session.id}"
        [real] = (await (await page.request.get(url, headers=headers)).json())["snapshots"]
        # Each page has one snapshot, and those of other sessions never end.
        own = [{**real, "id": f"snap-{index}", "name": f"number-{index}"} for index in range(3)]

        async def answer(route: Any) -> None:
            asked = parse_qs(urlsplit(route.request.url).query)
            after = int(asked.get("after", ["0"])[0])
            if "session" in asked:
                more = str(after + 1) if after + 1 < len(own) else None
                await route.fulfill(json={"snapshots": [own[after]], "next": more})
            else:
                await route.fulfill(json={"snapshots": [], "next": str(after + 1)})

        await page.route("**/v1/snapshots?*", answer)
        await console.go(f"/sessions/{session.id}/snapshots")
        for one in own:
            await page.locator("article.node", has_text=one["name"]).wait_for()
        await shows(page, "if they are among the oldest 10,000 of all")
        await page.unroute_all(behavior="ignoreErrors")


async def test_a_list_that_is_cut_says_so_and_finds_what_is_whole(console: Console) -> None:
    page = console.page
    many = await _many(console, 10_700)
    await console.go("/sessions")
    await shows(page, "These are of the oldest 10,000 sessions.")
    for text in (many[10_650]["thread"], many[10_650]["id"]):
        await page.get_by_label("Search").fill(text)
        await page.get_by_role("link", name=many[10_650]["id"]).wait_for()
    await page.get_by_label("Search").fill("no such thread")
    await shows(page, "No session matches.")
    await console.check()
