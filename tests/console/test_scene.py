"""The demonstration: agents work in three conversations, and the console tells what they did."""

from __future__ import annotations

import pytest

from sandlot import EventKind
from tests.console.conftest import Console
from tests.console.stage.agents import (
    LOST_THREAD,
    REPORT_THREAD,
    RESEARCH_THREAD,
    WHAT_IF_THREAD,
)
from tests.console.stage.scene import Scene
from tests.service.browsing import shows

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]


async def _told(console: Console, thread: str) -> list[tuple[str, str, str]]:
    """A conversation's steps as its story shows them, oldest first: what ran, how it ended, what it said."""
    await console.go(f"/threads/{thread}")
    kinds = [event.kind async for event in console.client.events(thread=thread)]
    await console.page.locator("article.step pre.ran").nth(kinds.count(EventKind.EXEC_STARTED) - 1).wait_for()
    badges = console.page.locator("article.step .badge").filter(has_not_text="running")
    await badges.nth(kinds.count(EventKind.EXEC_ENDED) - 1).wait_for()
    await shows(console.page, "live")
    while await console.page.get_by_role("button", name="Show output").count():
        await console.page.get_by_role("button", name="Show output").first.click()
    # No locator's count waits for the output.
    await console.page.locator("article.step").get_by_text("Loading…").first.wait_for(state="detached")
    steps = []
    for step in await console.page.locator("article.step", has=console.page.locator("pre.ran")).all():
        said = step.locator("pre.saw")
        ran = (await step.locator("pre.ran").inner_text()).strip()
        ending = await step.locator(".badge").inner_text()
        steps.append(
            (ran, ending, await said.inner_text() if ending != "running" and await said.count() else "")
        )
    return steps[::-1]


async def test_what_the_models_have_read(scene: Scene) -> None:
    """Otherwise the stories below would be of agents that failed."""
    report = scene.analyst.read(REPORT_THREAD)
    assert [text for text in report if text.startswith("profit")] == ["profit 1640", "profit 2390"]
    assert "No such file" in report[-3]
    assert "denied" in report[-1]
    assert scene.analyst.read(WHAT_IF_THREAD)[-1] == "profit 1892.0"
    denied = scene.researcher.read(RESEARCH_THREAD)[1]
    assert "prices.example.org" in denied
    assert "denied" in denied
    lost, restarted, went_on = scene.long_researcher.read(LOST_THREAD)[1:]
    assert "lost" in lost
    assert "new" in restarted
    assert went_on == "source 1: read"


async def test_a_story_of_work_that_goes_two_ways(console: Console, scene: Scene) -> None:
    page = console.page
    told = await _told(console, REPORT_THREAD)
    assert [(ending, said.strip()) for _, ending, said in told[1:4]] == [
        ("ok", "profit 1640"),
        (
            "exit 2",
            "python3: can't open file '/sandbox/workspace/profits.py': [Errno 2] No such file or directory",
        ),
        ("ok", "profit 2390"),
    ]
    assert told[2][0] == "echo April,1700,950 >> data/report.csv && python3 profits.py"
    assert [ending for _, ending, _ in told[4:]] == ["egress denied", "running"]
    for path in ("data/report.csv", "profit.py", "plot.png"):
        await page.locator("li", has_text="file.written").get_by_text(path).first.wait_for()
    told = await _told(console, WHAT_IF_THREAD)
    assert told[-1][1:] == ("ok", "profit 1892.0\n")
    # Both began with the same files, and the tree of snapshots says so.
    await console.go(f"/sessions/{scene.what_if}/snapshots")
    await page.locator("article.node", has_text="began here").wait_for()
    await page.locator("article.node", has_text="as delivered").wait_for()


async def test_a_story_of_a_denial(console: Console, scene: Scene) -> None:
    told = await _told(console, RESEARCH_THREAD)
    assert [ending for _, ending, _ in told] == ["ok", "egress denied", "ok"]
    await console.page.locator("li.bad", has_text="prices.example.org").first.wait_for()
    assert told[2][2] == "without prices: 42\n"
    await console.go(f"/sessions/{scene.research}/network")
    await console.page.get_by_role("button", name="Allow prices.example.org").wait_for()


async def test_a_story_of_a_loss(console: Console, scene: Scene) -> None:
    page = console.page
    told = await _told(console, LOST_THREAD)
    assert told[-1][2] == "source 1: read\n"
    await page.locator("li.bad", has_text="session.lost").wait_for()
    await console.go(f"/sessions/{scene.recovered}")
    await shows(page, "Generation 1 was lost")
    await console.go(f"/sessions/{scene.lost}")
    await shows(page, "The sandbox is lost")
    await console.go("/")
    for session in (scene.recovered, scene.lost):
        await page.locator("li", has_text="session.lost").get_by_role("link", name=session).wait_for()
