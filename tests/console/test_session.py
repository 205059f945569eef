"""What somebody does with a session in the console: its network, its snapshots, its recording, its figures."""

from __future__ import annotations

import re

import pytest

from sandlot.domain.session import SessionState
from sandlot.testing.eventually import eventually
from tests.console.conftest import Console
from tests.service.browsing import shows
from tests.unit.network.rig import answering, outside

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

WITHIN_S = 30.0
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nhello\n"


async def test_a_denied_request_passes_once_it_is_allowed(console: Console) -> None:
    page = console.page
    async with console.client.create() as session, outside(answering(OK)) as host:
        entry = f"127.0.0.1:{host.port}"
        ask = f"curl -fsS -m 20 --noproxy '' http://{entry}/"
        await console.go(f"/sessions/{session.id}/network")
        await shows(page, "Nothing was denied.")
        assert (await session.run(ask)).exit_code != 0
        # What is denied appears while one looks.
        await page.get_by_role("button", name=f"Allow {entry}", exact=True).click()
        await page.get_by_role("button", name="Revoke").wait_for()
        assert (await session.run(ask)).stdout == "hello\n"
        assert [grant.entry for grant in (await session.network.status()).grants] == [entry]
        await page.get_by_role("button", name="Revoke").click()
        await page.get_by_role("button", name="Revoke").wait_for(state="detached")
        assert (await session.run(ask)).exit_code != 0


async def test_a_port_gets_a_preview_that_opens(console: Console) -> None:
    page = console.page
    async with console.client.create() as session:
        await session.files.write("index.html", "<h1>from the sandbox</h1>")
        await session.start("python3 -m http.server 8000 --bind 127.0.0.1")
        await console.go(f"/sessions/{session.id}/network")
        await page.get_by_label("Port", exact=True).fill("8000")
        await page.get_by_role("button", name="Expose", exact=True).click()
        link = page.get_by_role("link", name="Open the preview")
        await link.wait_for()

        async def opens() -> bool:
            """The program may not listen yet."""
            async with page.context.expect_page() as opened:
                await link.click()
            preview = await opened.value
            try:
                await preview.wait_for_load_state()
                # It knows nothing of the page that opened it.
                assert await preview.evaluate("window.opener") is None
                return "from the sandbox" in await preview.inner_text("body")
            finally:
                await preview.close()

        await eventually(opens, WITHIN_S, "the preview opens")
        await page.get_by_role("button", name="Unexpose").click()
        await page.get_by_role("dialog").get_by_role("button", name="Unexpose").click()
        await link.wait_for(state="detached")
        assert await session.previews() == []


async def test_snapshots_are_taken_compared_restored_and_forked(console: Console) -> None:
    page = console.page
    async with console.client.create() as session:
        await session.files.write("kept.txt", "first\n")
        await session.files.write("gone.txt", "")
        await console.go(f"/sessions/{session.id}/snapshots")
        await page.get_by_label("Name").fill("before")
        await page.get_by_role("button", name="Take a snapshot", exact=True).click()
        node = page.locator("article.node", has_text="before")
        await node.wait_for()

        await session.files.write("kept.txt", "second\n")
        await session.files.write("added.txt", "")
        await session.files.remove("gone.txt")
        await node.get_by_role("button", name="Compare").click()
        changes = page.locator(".changes")
        await changes.get_by_text("+ added.txt").wait_for()
        assert await changes.locator("li").all_inner_texts() == [
            "+ added.txt",
            "~ kept.txt",
            "\u2212 gone.txt",
        ]

        await node.get_by_role("button", name="Fork").click()
        await page.get_by_role("dialog").get_by_role("button", name="Fork").click()
        await page.wait_for_url(lambda url: "/sessions/ses_" in url and session.id not in url)
        fork = await console.client.get(page.url.rpartition("/")[2])
        assert await fork.files.read_text("kept.txt") == "first\n"
        assert await session.files.read_text("kept.txt") == "second\n"
        await page.get_by_role("link", name="Snapshots", exact=True).click()
        base = page.locator("article.node.base", has_text="before")
        await base.get_by_text("began here").wait_for()
        # It would be compared with the files of the session that it is of.
        assert await base.get_by_role("button", name="Compare").count() == 0
        await page.get_by_role("link", name=session.id).click()  # whose snapshot it is
        await page.get_by_role("link", name="Snapshots", exact=True).click()

        await node.get_by_role("button", name="Restore").click()
        await page.get_by_role("dialog").get_by_role("button", name="Restore").click()
        await shows(page, "generation 2")
        await shows(page, "Generation 1 ended")  # and was not lost
        assert await session.files.read_text("kept.txt") == "first\n"
        assert not await session.files.exists("added.txt")

        await node.get_by_role("button", name="Delete").click()
        await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        await node.wait_for(state="detached")
        await fork.delete()


async def test_who_looks_around_wakes_no_session(console: Console) -> None:
    page = console.page
    async with console.client.create(thread="looked-at") as session:
        await session.files.write("kept.txt", "")
        await session.run("echo said")
        await session.hibernate()
        for tab in ("about", "terminal", "execs", "files", "snapshots", "network", "history"):
            await console.go(f"/sessions/{session.id}/{tab}")
            await shows(page, "The session is hibernated until its next use")
            await page.wait_for_load_state("networkidle" if tab != "history" else "load")
        await console.go("/threads/looked-at")
        await shows(page, "The session has hibernated since, and its output is not kept.")
        assert (await console.client.get(session.id)).info.state is SessionState.HIBERNATED
        await console.go(f"/sessions/{session.id}/files")
        await page.get_by_role("button", name="Wake it and show the files").click()
        await page.locator("button.file", has_text="kept.txt").wait_for()
        await shows(page, "Generation 1 ended")


async def test_a_session_that_hibernates_again_is_not_woken_again(console: Console) -> None:
    page = console.page
    async with console.client.create() as session:
        await session.hibernate()
        await console.go(f"/sessions/{session.id}/execs")
        wake = page.get_by_role("button", name="Wake it and show the commands")
        await wake.click()
        await shows(page, "Generation 1 ended")
        await page.get_by_role("button", name="Hibernate").click()
        await page.get_by_role("dialog").get_by_role("button", name="Hibernate").click()
        await wake.wait_for()
        assert (await console.client.get(session.id)).info.state is SessionState.HIBERNATED


async def test_a_recording_is_played_back(console: Console) -> None:
    page = console.page
    async with console.client.create(record=True) as session:
        said = await session.start(
            "echo $((1 + 1))-first; touch said; until [ -e go ]; do sleep 0.02; done; echo $((1 + 2))-last"
        )

        async def first() -> bool:
            return bool(await session.files.exists("said"))

        await eventually(first, WITHIN_S, "the first words are said")
        await session.files.write("go", "")
        await said.wait()
        await console.go(f"/sessions/{session.id}/recording")
        position = page.get_by_label("Position")
        await page.get_by_label("For screen readers").check()
        assert "3-last" not in "".join(await console.screen_rows())
        await page.get_by_role("button", name="Play").click()
        await console.screen_shows("2-first")
        await console.screen_shows("3-last")
        await page.get_by_role("button", name="Play").wait_for()  # it was `Pause` until the end
        assert await position.input_value() == await position.get_attribute("max")
        await position.fill("0")
        await page.wait_for_function(
            "() => !document.querySelector('.xterm-accessibility-tree').innerText.includes('3-last')"
        )
        await page.get_by_role("button", name="Play").click()
        await console.screen_shows("3-last")


async def test_what_a_session_uses_is_plotted(console: Console) -> None:
    """Processor, memory, processes, files and bytes of the network, while one looks."""
    page = console.page

    async def plotted(label: str) -> None:
        await page.get_by_role("img", name=re.compile(label)).wait_for()

    async with console.client.create() as session, outside(answering(OK)) as host:
        await console.go(f"/sessions/{session.id}")
        await plotted(r"^Processor, of .*: used \d+ %$")
        await session.start("while :; do :; done")
        # Nothing else in an idle sandbox uses a fifth of what it may.
        await plotted(r"^Processor, of .*: used ([2-9]\d|1\d\d) %$")
        await plotted(r"^Memory, of .*: used \d.* [KM]iB$")
        await plotted(r"^Processes, of .*: running [1-9]\d*$")
        if console.measures_files:
            # btrfs counts what has reached the disk.
            await session.run("head -c 50000000 /dev/urandom > large; sync -f large")
            await plotted(r"^Files.*: used 4[89] MiB$")
        await session.network.allow(f"127.0.0.1:{host.port}")
        # It may be over between two looks, so it goes on until one of them has seen it.
        asks = f"curl -fsS --noproxy '' http://127.0.0.1:{host.port}/"
        asking = await session.start(f"while {asks} > said; do sleep 0.1; done")
        some = r"([1-9]\d* B|[1-9][\d.]* [KM]iB)"
        await plotted(rf"^Bytes per second: received {some}, sent {some}$")
        await asking.kill()
        await shows(page, "requests")


async def test_the_overview_changes_while_one_looks(console: Console) -> None:
    page = console.page

    async def figure(label: str) -> int:
        shown = (
            await page.locator(".figure", has=page.get_by_text(label, exact=True)).locator("dd").inner_text()
        )
        return int(re.match(r"[\d,]+", shown)[0].replace(",", ""))  # type: ignore[index]

    async def becomes(label: str, value: int) -> None:
        async def same() -> bool:
            return await figure(label) == value

        await eventually(same, WITHIN_S, f"{label} are {value}")

    created = [event async for event in console.client.events(kinds=["session.created"])]
    sessions = [session async for session in console.client.sessions()]
    await page.get_by_text("live", exact=True).wait_for()
    await becomes("Creates", len(created))
    await becomes("Sessions", len(sessions))
    commands = await figure("Commands")
    async with console.client.create() as session:
        await becomes("Creates", len(created) + 1)
        await becomes("Sessions", len(sessions) + 1)
        await session.run("false")
        await becomes("Commands", commands + 1)

        async def charted() -> bool:
            """Its last point is this minute's, and a minute may just have begun."""
            await session.run("true")
            return bool(await chart.count())

        chart = page.get_by_role("img", name=re.compile(r"^Per minute: commands [1-9]"))
        await eventually(charted, WITHIN_S, "the command is in the chart")
    await becomes("Sessions", len(sessions))
