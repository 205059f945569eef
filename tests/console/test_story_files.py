"""A thread's story shows what each step changed in the files, from the snapshots between the steps."""

from __future__ import annotations

import pytest

from tests.console.conftest import Console
from tests.service.browsing import shows

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

MINUS = "\u2212"
HOSTILE = "<img src=x onerror=alert(80)>\u202etxt.exe"


async def test_each_step_shows_the_files_that_it_changed(console: Console) -> None:
    """As an agent with time travel takes them, and one of the caller's own at the end."""
    page = console.page
    session = await console.client.thread("files-step-by-step")
    before = None
    for number, command in enumerate(("echo 1 > a; echo 1 > b", "echo 2 > a; rm b; echo x > c", "true")):
        await session.workspace.begin_step(f"step {number}", before)
        await session.run(command)
        before = await session.workspace.end_step(f"step {number}")
    await session.files.write(HOSTILE, "x")
    await session.run("echo marked")
    await session.workspace.snapshot("my own")
    await session.run("rm a")
    await console.go("/threads/files-step-by-step")
    changes = page.get_by_role("list", name="Changed files")

    async def changed_by(command: str) -> list[str]:
        step = page.locator("article", has=page.get_by_text(command, exact=True))
        buttons = step.get_by_role("button", name="Show changed files")
        await buttons.first.wait_for()
        for button in await buttons.all():
            await button.click()
        await step.get_by_role("list", name="Changed files").first.wait_for()
        return [
            await one.inner_text()
            for one in await step.get_by_role("list", name="Changed files").locator("li").all()
        ]

    assert sorted(await changed_by("echo 1 > a; echo 1 > b")) == ["+ a", "+ b"]
    assert sorted(await changed_by("echo 2 > a; rm b; echo x > c")) == ["+ c", "~ a", f"{MINUS} b"]
    assert (
        await page.locator("article", has=page.get_by_text("true", exact=True))
        .get_by_text("Snapshot")
        .count()
        == 0
    )
    assert await changed_by("echo marked") == ["+ <img src=x onerror=alert(80)>\\u202etxt.exe"]
    shown = await changes.count()
    await page.get_by_role("button", name="Show files changed since the last snapshot").click()
    await changes.nth(shown).wait_for()
    assert await changes.first.inner_text() == f"{MINUS} a"
    await console.check()
    await session.delete()


async def test_a_thread_without_snapshots_says_how_to_get_them(console: Console) -> None:
    page = console.page
    session = await console.client.thread("no-snapshots")
    await session.run("echo hi > there")
    await console.go("/threads/no-snapshots")
    await shows(page, "No snapshots of this thread")
    assert await page.get_by_role("button", name="Show changed files").count() == 0
    await page.get_by_role("button", name="Copy as code: Take a snapshot").click()
    await shows(page, f"sandlot snapshots create {session.id}")
    await console.check()
    await session.delete()
