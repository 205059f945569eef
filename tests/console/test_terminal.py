"""Terminals in a real Chromium: what they show and take, also over a line that breaks."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from sandlot import AsyncSession
from sandlot.testing.eventually import eventually
from tests.console.conftest import Console, opened_console
from tests.console.stage.line import Line
from tests.faults.rig import ServerProcess
from tests.service.browsing import shows

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

FLOOD_BYTES = 10 * 1024 * 1024
# The longest that a page may be busy while a flood is drawn, of the time that this takes. A page that draws it in
# one piece is busy all the time. How long a key waits is measured by `bench.console`.
BUSY_SHARE = 0.5
WITHIN_S = 30.0
BROKE = "The connection broke. Connecting again"
UNSURE = "What you typed last may not have arrived"
# Numbers, and pauses in which a test does something. They fill less than a screen.
LAST = 240
PAUSES = (60, 120, 180)
NUMBERS = f"""
for number in $(seq {LAST}); do
  printf '<%s>' $number
  case $number in {"|".join(map(str, PAUSES))}) touch at-$number; until [ -e go-$number ]; do sleep 0.02; done;; esac
done
echo; echo all-$((1 + 1))
"""


@pytest_asyncio.fixture(loop_scope="session")
async def line(server: ServerProcess) -> AsyncIterator[Line]:
    async with Line(server.port) as line:
        yield line


@pytest_asyncio.fixture(loop_scope="session")
async def remote(line: Line, server: ServerProcess, chromium: Any) -> AsyncIterator[Console]:
    """A console at the far end of the line."""
    async with opened_console(server, chromium, line.url) as console:
        yield console


async def _types(console: Console, text: str) -> None:
    await console.page.keyboard.type(text + "\n")


async def _open_terminal(console: Console, session: AsyncSession) -> None:
    await console.go(f"/sessions/{session.id}/terminal")
    await console.open_terminal()


async def _there(session: AsyncSession, path: str) -> None:
    async def exists() -> bool:
        return bool(await session.files.exists(path))

    await eventually(exists, WITHIN_S, f"{path} is there")


async def test_a_terminal_types_and_shows(console: Console) -> None:
    async with console.client.create() as session:
        await _open_terminal(console, session)
        await _types(console, "echo $((6 * 7))-and-more | tee seen.txt")
        await console.screen_shows("42-and-more")
        assert await session.files.read_text("seen.txt") == "42-and-more\n"
        await _types(console, "stty size")
        rows = await console.page.evaluate(
            "document.querySelectorAll('.xterm-accessibility-tree > *').length"
        )
        await console.screen_shows(f"{rows} ")
        await console.check()


async def test_a_terminal_goes_on_after_a_broken_connection(remote: Console, line: Line) -> None:
    """Every number once and in order, on the screen that saw the connection break; and what was typed, once."""
    async with remote.client.create() as session:
        await session.files.write("numbers.sh", NUMBERS)
        await _open_terminal(remote, session)
        await _types(remote, "bash numbers.sh")
        await remote.screen_shows("<60>")

        line.cut()  # while nothing is said; the next words come while nobody listens
        await shows(remote.page, BROKE)
        await session.files.write("go-60", "")
        await _there(session, "at-120")
        line.mend()
        await remote.screen_shows("<120>")

        line.cut_after(100)  # in the middle of a message
        await session.files.write("go-120", "")
        await line.is_cut(2)
        await remote.screen_shows("<180>")

        line.cut()
        await shows(remote.page, BROKE)
        await _types(remote, "echo typed-$((20 + 1)) >> typed.txt; echo the-$((30 + 1))-end")
        await session.files.write("go-180", "")
        line.mend()
        await remote.screen_shows("the-31-end")

        line.cut()  # what was typed without the last connection has gone, and goes no second time
        await shows(remote.page, BROKE)
        line.mend()
        await _types(remote, "echo over-$((3 + 4))")
        await remote.screen_shows("over-7")

        assert line.cuts >= 4
        text = "".join(await remote.screen_rows())
        assert [int(number) for number in re.findall(r"<(\d+)>", text)] == list(range(1, LAST + 1))
        assert text.count("all-2") == 1
        assert await session.files.read_text("typed.txt") == "typed-21\n"
        # And a page that was opened later shows the same.
        await remote.page.reload()
        await remote.screen_shows("over-7")
        text = "".join(await remote.screen_rows())
        assert [int(number) for number in re.findall(r"<(\d+)>", text)] == list(range(1, LAST + 1))


async def test_keys_of_unknown_fate_are_told_and_never_sent_twice(remote: Console, line: Line) -> None:
    async with remote.client.create() as session:
        await _open_terminal(remote, session)

        line.swallow(keys=True)  # lost on their way
        await _types(remote, "echo lost >> typed.txt")
        line.cut()
        await shows(remote.page, BROKE)
        line.mend()
        await shows(remote.page, UNSURE)
        await _types(remote, "echo arrived >> typed.txt")
        await _there(session, "typed.txt")

        line.swallow(output=True)  # arrived, but nothing says so
        await _types(remote, "echo unseen >> typed.txt; touch unseen")
        await _there(session, "unseen")
        line.cut()
        await shows(remote.page, BROKE)
        line.mend()
        await shows(remote.page, UNSURE)
        await _types(remote, "echo last >> typed.txt; touch last")
        await _there(session, "last")
        assert await session.files.read_text("typed.txt") == "arrived\nunseen\nlast\n"


async def test_keys_that_are_not_taken_are_told(remote: Console, line: Line) -> None:
    """More than is kept while there is no connection: no part of it arrives, and nothing that came after it."""
    page = remote.page
    async with remote.client.create() as session:
        await _open_terminal(remote, session)
        line.cut()
        await shows(page, BROKE)
        await _types(remote, "touch before")
        await page.evaluate(
            """text => {
                const clipboardData = new DataTransfer();
                clipboardData.setData('text/plain', text);
                const paste = new ClipboardEvent('paste', { clipboardData, bubbles: true });
                document.querySelector('.xterm-helper-textarea').dispatchEvent(paste);
            }""",
            "touch pasted; # " + 5_000 * "x",
        )
        await _types(remote, "touch after")
        await shows(page, "What you type is not taken")
        line.mend()
        await shows(page, "Not all that you typed meanwhile was taken")
        await _types(remote, "touch last")
        await _there(session, "last")
        assert {entry.name for entry in await session.files.list()} == {"before", "last"}


async def test_a_connection_that_died_without_a_word_is_left(remote: Console, line: Line) -> None:
    page = remote.page
    await page.clock.install()
    async with remote.client.create() as session:
        await _open_terminal(remote, session)
        line.swallow(keys=True, output=True)
        await _types(remote, "echo lost >> typed.txt")
        assert await page.get_by_text("Connected.").count() == 1
        await page.clock.fast_forward("01:00")
        await shows(page, UNSURE)
        await _types(remote, "echo $((6 * 7))-again")
        await remote.screen_shows("42-again")
        assert not await session.files.exists("typed.txt")


async def test_much_output_leaves_the_page_responsive(console: Console) -> None:
    async with console.client.create() as session:
        await _open_terminal(console, session)
        await console.page.get_by_label("For screen readers").uncheck()
        await console.page.locator(".xterm-helper-textarea").focus()
        await console.page.evaluate(
            """() => {
                window.__longest = 0;
                let before = performance.now();
                setInterval(() => {
                    const now = performance.now();
                    window.__longest = Math.max(window.__longest, now - before);
                    before = now;
                }, 10);
            }"""
        )
        began = time.monotonic()
        await _types(
            console,
            f"head -c {FLOOD_BYTES} /dev/zero | tr '\\0' 'x' | fold -w 79; echo flood-$((2 + 3)); touch over",
        )

        async def over() -> bool:
            return bool(await session.files.exists("over"))

        await eventually(over, 60, "the flood is over")
        await console.page.get_by_label("For screen readers").check()
        await console.screen_shows("flood-5", 60)
        took_ms = 1000 * (time.monotonic() - began)
        assert await console.page.evaluate("window.__longest") < BUSY_SHARE * took_ms


async def test_lost_output_is_told_where_it_was(console: Console) -> None:
    """Not before what came earlier, and is still drawn."""
    page = console.page
    lines = b"".join(b"line %d\r\n" % number for number in range(100_000))

    def answer(socket: Any) -> None:
        for offset, said in ((0, lines), (len(lines) + 1_234, b"after")):
            socket.send(b"\1" + offset.to_bytes(8, "big") + said)

    await page.route_web_socket(re.compile("/attach"), answer)
    async with console.client.create() as session:
        await _open_terminal(console, session)
        await console.screen_shows("after")
        rows = [row for row in await console.screen_rows() if row]
        assert rows[-3:] == ["line 99999", " 1,234 bytes are not kept", "after"]


async def test_a_flood_that_the_page_has_left_can_be_interrupted(console: Console) -> None:
    """It reads no more while it draws what it has. A key is sent all the same."""
    left = asyncio.Event()
    console.page.on("websocket", lambda socket: socket.on("close", lambda _: left.set()))
    async with console.client.create() as session:
        await _open_terminal(console, session)
        await console.page.get_by_label("For screen readers").uncheck()
        await console.page.locator(".xterm-helper-textarea").focus()
        await _types(console, "yes $(head -c 2000 /dev/zero | tr '\\0' 'x')")
        await asyncio.wait_for(left.wait(), 60)
        await console.page.keyboard.press("Control+C")

        async def interrupted() -> bool:
            return (await session.run("pgrep -x yes")).exit_code != 0

        await eventually(interrupted, 20, "the flood is interrupted")
