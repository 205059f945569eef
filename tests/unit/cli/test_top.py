"""``sandlot top``, driven by keys, on the fake."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.unit.cli.conftest import SANDLOT, SECONDS, Served
from textual.pilot import Pilot
from textual.widgets import DataTable, Input, Static

from sandlot.cli.top.activity import COMMANDS, CREATES, MINUTES, Activity
from sandlot.cli.top.app import TopApp
from sandlot.cli.top.cells import output_text
from sandlot.cli.top.source import Source
from sandlot.domain.errors import NotFound
from sandlot.domain.history.events import Event
from sandlot.testing.fake import FakeSandlot

SIZE = (120, 40)
WITHIN_S = 15.0


def opened(fake: FakeSandlot) -> TopApp:
    return TopApp(Source(fake.client()), "http://fake")


async def becomes(pilot: Pilot[Any], true: Callable[[], Any]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while True:
        await pilot.pause(0.05)
        if true():
            return
        assert time.monotonic() < deadline, screen_text(pilot)


def screen_text(pilot: Pilot[Any]) -> str:
    """Everything that tables and texts of the uppermost screen say."""
    parts = [str(text.render()) for text in pilot.app.screen.query(Static)]
    for table in pilot.app.screen.query(DataTable):
        parts += [" ".join(str(cell) for cell in table.get_row_at(row)) for row in range(table.row_count)]
    return "\n".join(parts)


def told(pilot: Pilot[Any]) -> str:
    return "\n".join(notification.message for notification in pilot.app._notifications)


async def test_sessions_and_their_activity_are_shown() -> None:
    fake = FakeSandlot()
    async with fake.client() as client:
        session = await client.thread("report", metadata={"user": "ada"})
        await session.run("echo one")
        app = opened(fake)
        async with app.run_test(size=SIZE) as pilot:
            await becomes(pilot, lambda: session.id in screen_text(pilot))
            await becomes(pilot, lambda: "Commands: 1 this minute, 1 in 30 minutes" in screen_text(pilot))
            assert "Creates: 1 this minute" in screen_text(pilot)
            later = await client.create()  # while somebody looks
            await becomes(pilot, lambda: later.id in screen_text(pilot))
            await becomes(pilot, lambda: "Creates: 2 this minute" in screen_text(pilot))


async def test_a_filter_finds_sessions() -> None:
    fake = FakeSandlot()
    async with fake.client() as client:
        wanted = await client.create(metadata={"user": "Ada Lovelace"})
        other = await client.create()
        async with opened(fake).run_test(size=SIZE) as pilot:
            await becomes(pilot, lambda: other.id in screen_text(pilot))
            await pilot.press("slash", *"lovelace")
            await becomes(pilot, lambda: "Sessions: 1 of 2" in screen_text(pilot))
            assert wanted.id in screen_text(pilot)
            assert other.id not in screen_text(pilot)
            await pilot.press("d", "q")  # are letters here
            assert pilot.app.query_one(Input).value == "lovelacedq"
            await pilot.press("escape")
            await becomes(
                pilot, lambda: "Sessions: 2" in screen_text(pilot) and other.id in screen_text(pilot)
            )


async def test_a_session_shows_commands_and_kills_one() -> None:
    fake = FakeSandlot()
    async with fake.client() as client:
        session = await client.create()
        await session.run("echo first-output")
        running = await session.start("sleep 600")
        async with opened(fake).run_test(size=SIZE) as pilot:
            await becomes(pilot, lambda: session.id in screen_text(pilot))
            await pilot.press("enter")
            await becomes(pilot, lambda: len(pilot.app.screen_stack) == 2)
            await pilot.press("slash")  # filters the list, which is not to be seen here
            await becomes(pilot, lambda: "sleep 600 running" in screen_text(pilot))
            await pilot.press("down")
            await becomes(pilot, lambda: "first-output\n" in screen_text(pilot))
            await pilot.press("up", "k")
            await becomes(pilot, lambda: re.search(r"sleep 600 exit \d+", screen_text(pilot)))
            await pilot.press("k")
            await becomes(pilot, lambda: "does not run any more" in told(pilot))
            await pilot.press("escape")
            await becomes(pilot, lambda: "Sessions: 1" in screen_text(pilot))
        assert not (await running.status()).running


async def test_a_session_is_deleted_only_after_a_yes() -> None:
    fake = FakeSandlot()
    async with fake.client() as client:
        session = await client.create()
        async with opened(fake).run_test(size=SIZE) as pilot:
            await becomes(pilot, lambda: session.id in screen_text(pilot))
            await pilot.press("d")
            await becomes(pilot, lambda: f"Delete {session.id}?" in screen_text(pilot))
            await pilot.press("n")
            await becomes(pilot, lambda: "Delete" not in screen_text(pilot))
            assert (await client.get(session.id)).state == "active"
            await pilot.press("d")
            await becomes(pilot, lambda: f"Delete {session.id}?" in screen_text(pilot))
            await pilot.press("y")
            await becomes(pilot, lambda: "Sessions: 0" in screen_text(pilot))
        assert [one async for one in client.sessions()] == []


async def test_the_cursor_stays_on_its_session() -> None:
    fake = FakeSandlot()
    async with fake.client() as client:
        chosen = await client.create()
        async with opened(fake).run_test(size=SIZE) as pilot:
            await becomes(pilot, lambda: chosen.id in screen_text(pilot))
            newer = await client.create()  # above it
            await becomes(pilot, lambda: newer.id in screen_text(pilot))
            await pilot.press("d")
            await becomes(pilot, lambda: "Delete" in screen_text(pilot))
            assert f"Delete {chosen.id}?" in screen_text(pilot)


async def test_a_server_that_does_not_answer_is_told_and_asked_again() -> None:
    fake = FakeSandlot()
    app = opened(fake)
    async with app.run_test(size=SIZE) as pilot:
        await becomes(pilot, lambda: "fake" in screen_text(pilot))
        list_sessions: Callable[..., Awaitable[Any]] = fake.service.list_sessions

        async def fails(**_: Any) -> Any:
            raise NotFound("The server is elsewhere.")

        fake.service.list_sessions = fails  # type: ignore[method-assign]
        await becomes(pilot, lambda: "The server is elsewhere." in screen_text(pilot))
        fake.service.list_sessions = list_sessions  # type: ignore[method-assign]
        await becomes(pilot, lambda: "The server is elsewhere." not in screen_text(pilot))


async def test_what_sandboxes_write_controls_no_terminal() -> None:
    fake = FakeSandlot()
    hostile = "\x1b]0;title\x07 [link=http://evil]x[/link] \x1b[31mred\x1b[0m \u202egnp.exe"
    fake.on("hostile", stdout=hostile + "\n")
    async with fake.client() as client:
        session = await client.create(metadata={"name": "[bold]\x1b[2J"})
        await session.run("hostile '\x1b[2J' [blink]")
        async with opened(fake).run_test(size=SIZE) as pilot:
            await becomes(pilot, lambda: session.id in screen_text(pilot))
            await pilot.press("enter")
            await becomes(pilot, lambda: "[link=http://evil]x[/link] red" in screen_text(pilot))
            shown = screen_text(pilot)
            assert "\x1b" not in shown
            assert "\u202e" not in shown
            assert "[blink]" in shown


@pytest.mark.parametrize("seconds", [0, 59, 3_600])
def test_only_the_latest_minutes_are_counted(seconds: int) -> None:
    activity = Activity()
    now = 1_000_000_020.0
    for at in (now - 40 * 60, now - 60, now - 60, now):
        activity.add(Event(id="e", at=at, kind=CREATES, tenant="t"))
    counts = activity.per_minute(CREATES, now + seconds)
    assert len(counts) == MINUTES
    assert sum(counts) == (0 if seconds == 3_600 else 3)
    assert activity.per_minute(COMMANDS, now) == [0] * MINUTES


def test_long_output_shows_its_last_lines() -> None:
    text = output_text("\n".join(map(str, range(10_000)))).plain
    assert text.startswith("9500\n")
    assert text.endswith("9999")


def test_the_command_opens_the_view_of_a_server(served: Served) -> None:
    session_id = served.create()
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    process = subprocess.Popen(
        [*SANDLOT, "top"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=served.environment(TERM="xterm-256color"),
    )
    os.close(theirs)
    shown = b""
    while session_id.encode() not in shown:
        shown += os.read(ours, 65536)  # the time limit of the test bounds it
    os.write(ours, b"q")
    with contextlib.suppress(OSError):  # how a terminal tells its end
        while os.read(ours, 65536):
            pass
    assert process.wait(SECONDS) == 0
    os.close(ours)


def test_without_a_terminal_it_names_other_commands(served: Served) -> None:
    process = served.start("top")
    _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 1
    assert b"sandlot top needs a terminal" in err
    assert b"sandlot sessions list" in err
