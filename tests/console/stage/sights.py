"""What there is to see in the console: its pages with something on them, and its dialogs, in four forms."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from tests.console.stage.agents import LOST_THREAD, REPORT_THREAD
from tests.console.stage.scene import Scene

SIZES = {"desktop": {"width": 1280, "height": 860}, "phone": {"width": 390, "height": 844}}
FORMS = {f"{size}-{scheme}": (SIZES[size], scheme) for size in SIZES for scheme in ("light", "dark")}
# So that charts of what a session uses have a line.
SAMPLES = 4
_SETTLED = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"

Act = Callable[[Any], Awaitable[object]]


async def _nothing(page: Any) -> None:
    pass


@dataclass(frozen=True)
class Sight:
    """A page, and what somebody has done on it. Where ``shows`` (a CSS selector) is to be seen, it is complete."""

    name: str
    path: str
    shows: str
    act: Act = _nothing

    async def open(self, page: Any, url: str) -> None:
        await page.goto(f"{url}/console{self.path}")
        await self.act(page)
        await page.locator(self.shows).first.wait_for(state="attached")


async def in_each_form(page: Any) -> AsyncIterator[str]:
    """The page as it is, in one form after the other."""
    for name, (size, scheme) in FORMS.items():
        await page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        await page.set_viewport_size(size)
        await page.evaluate(_SETTLED)
        yield name


def sights_of(scene: Scene) -> list[Sight]:
    report, research = f"/sessions/{scene.report}", f"/sessions/{scene.research}"
    return [
        Sight("overview", "/", "li:has-text('session.lost')", _live),
        Sight("sessions", "/sessions", "tbody tr"),
        Sight("sessions-none", "/sessions?q=nothing-like-this", ".empty"),
        Sight("new-session", "/sessions", "dialog option:nth-child(2)", _click("New session")),
        Sight("session", report, ".plots canvas", _measured),
        Sight("session-lost", f"/sessions/{scene.lost}", ".loss"),
        Sight("session-recovered", f"/sessions/{scene.recovered}", ".loss"),
        Sight("session-unknown", "/sessions/ses_00000000000000000000000000000000", ".failure"),
        Sight("copy-as", report, "dialog pre", _click("Copy as code")),
        Sight("delete", report, "dialog pre", _in_turn(_click("Delete"), _click("Show as code"))),
        Sight(
            "commands", f"{report}/execs", ".screen canvas", _in_turn(_click("for day in"), _text("day 2"))
        ),
        Sight("kill", f"{report}/execs", "dialog code", _click("Kill")),
        Sight("files", f"{report}/files", "button.file"),
        Sight("file-table", f"{report}/files", "td", _in_turn(_click("data/"), _click("report.csv"))),
        Sight("file-text", f"{report}/files", "textarea", _click("profit.py")),
        Sight("file-picture", f"{report}/files", "img.picture", _click("plot.png")),
        Sight("snapshots", f"{report}/snapshots", ".changes li", _click("Compare")),
        Sight("snapshots-fork", f"/sessions/{scene.what_if}/snapshots", ".node.base"),
        Sight("network", f"{research}/network", "button:text('Allow prices')"),
        Sight("history", f"{report}/history", ".timeline li"),
        Sight("recording", f"{report}/recording", ".player canvas", _played_to_its_end),
        Sight("threads", "/threads", ".rows li"),
        Sight("story", f"/threads/{REPORT_THREAD}", "pre.saw"),
        Sight("story-lost", f"/threads/{LOST_THREAD}", "li.bad"),
        Sight("fleet-none", "/fleet", ".empty"),
        *administration(),
        Sight("nothing-here", "/nowhere", "h1:text('Nothing here')"),
        # Last: it becomes a step of the story.
        Sight("terminal", f"{report}/terminal", ".screen canvas", _typed),
    ]


def administration() -> list[Sight]:
    return [
        Sight("environments", "/admin/environments", ".card"),
        Sight("keys", "/admin/keys", ".rows li"),
        Sight("key-made", "/admin/keys", ".snippet", _made_key),
        Sight("tenants", "/admin/tenants", ".limits"),
        Sight("webhooks", "/admin/webhooks", ".rows li"),
    ]


def sights_of_fleet(scene: Scene) -> list[Sight]:
    """Through a coordinator."""
    return [
        Sight("fleet-overview", "/", "li:has-text('session.lost')", _live),
        Sight("fleet", "/fleet", "article.card meter"),
        Sight("fleet-drain", "/fleet", "dialog", _click("Drain")),
        Sight("fleet-session", f"/sessions/{scene.report}", ".plots canvas", _measured),
        Sight("fleet-story", f"/threads/{REPORT_THREAD}", "pre.saw"),
        *(Sight(f"fleet-{one.name}", one.path, one.shows, one.act) for one in administration()),
    ]


def _click(name: str) -> Act:
    async def act(page: Any) -> None:
        await page.get_by_role("button", name=name).first.click()

    return act


def _text(text: str) -> Act:
    async def act(page: Any) -> None:
        await page.get_by_label("For screen readers").check()
        await page.wait_for_function(
            "text => document.querySelector('.xterm-accessibility')?.innerText.includes(text)", arg=text
        )
        await page.get_by_label("For screen readers").uncheck()

    return act


def _in_turn(*acts: Act) -> Act:
    async def act(page: Any) -> None:
        for one in acts:
            await one(page)

    return act


async def _live(page: Any) -> None:
    await page.get_by_text("live", exact=True).wait_for()


async def _measured(page: Any) -> None:
    for _ in range(SAMPLES):
        async with page.expect_response("**/usage"):
            pass


async def _made_key(page: Any) -> None:
    await page.get_by_label("Name").fill("by-hand")
    await page.get_by_role("button", name="Create", exact=True).click()


async def _played_to_its_end(page: Any) -> None:
    position = page.get_by_label("Position")
    await position.fill(await position.get_attribute("max"))


async def _typed(page: Any) -> None:
    opens = page.get_by_role("button", name="Open a terminal", exact=True)
    await opens.or_(page.get_by_text("Connected.")).first.wait_for()
    if await opens.count():
        await opens.click()
    await page.get_by_text("Connected.").wait_for()
    await page.locator(".xterm-helper-textarea").focus()
    await page.keyboard.type("clear; ls --color -la; git --version; echo done-$((1 + 1))\n")
    await _text("done-2")(page)
