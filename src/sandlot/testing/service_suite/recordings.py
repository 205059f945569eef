"""Recordings: what the commands of a recorded session write, with its timing, for its own tenant alone."""

from __future__ import annotations

import asyncio
import time

import pytest

from sandlot.client.async_client import AsyncClient
from sandlot.client.async_session import AsyncSession
from sandlot.domain.errors import NotFound, SandlotError, ThreadDiffers
from sandlot.testing.asciicast import Asciicast, parse_asciicast
from sandlot.testing.eventually import eventually
from sandlot.testing.service_suite.harness import Cases, ServiceHarness, deleted_afterwards, ok, unique

# Seconds by which output is recorded that nobody reads.
RECORDED_WITHIN_S = 30.0
# Seconds between two writes of a command.
PAUSE_S = 0.5


async def recording_of(session: AsyncSession) -> Asciicast:
    return parse_asciicast(b"".join([piece async for piece in session.recording()]))


class RecordingCases(Cases):
    async def test_a_recorded_session_can_be_replayed(self, client: AsyncClient) -> None:
        async with client.create(record=True) as session:
            assert session.info.record
            assert (await client.get(session.id)).info.record
            result = await session.run("echo first; echo second >&2; exit 3", timeout_s=30, merge_output=True)
            cast = await recording_of(session)
        assert cast.shown == "$ echo first; echo second >&2; exit 3\r\nfirst\r\nsecond\r\n"
        assert cast.markers[1:] == [
            f"exec {result.exec_id} started",
            f"exec {result.exec_id} ended: nonzero, exit code 3",
        ]

    async def test_output_has_the_time_when_it_was_written(self, client: AsyncClient) -> None:
        began = time.time()
        async with client.create(record=True) as session:
            command = await session.start("cat", stdin=True)

            async def shown(text: str) -> None:
                async def recorded() -> bool:
                    return text in (await recording_of(session)).shown

                await eventually(recorded, RECORDED_WITHIN_S, f"{text!r} is recorded")

            await command.write("first\n")
            await shown("first")
            await asyncio.sleep(PAUSE_S)
            await command.write("second\n")
            await shown("second")
            cast = await recording_of(session)
            await command.close_stdin()
            await command.wait()
        times = {event.data: event.at for event in cast.events if event.code == "o"}
        assert PAUSE_S < times["second\r\n"] - times["first\r\n"] < time.time() - began
        # Clocks of two machines differ by less than that.
        assert began - 60 < cast.header["timestamp"] < time.time() + 60

    async def test_a_recording_stays_after_the_sessions_end(self, client: AsyncClient) -> None:
        session = await client.create(record=True)
        await ok(session, "echo kept")
        await session.delete()
        cast = await recording_of(session)
        assert cast.shown == "$ echo kept\r\nkept\r\n"
        assert cast.markers[-1] == "the session ended"
        pieces = [piece async for piece in client.recording(session.id)]
        assert parse_asciicast(b"".join(pieces)) == cast

    async def test_a_recording_masks_values_of_variables(self, client: AsyncClient) -> None:
        async with client.create(record=True, env={"TOKEN": "of-the-session"}) as session:
            await ok(session, "echo of-the-session $TOKEN $X", env={"X": "of-the-command"})
            # Two writes, so that the value may come in two pieces.
            await ok(session, "printf of-the-; sleep 0.3; printf 'session\\n'")
            cast = await recording_of(session)
        assert "of-the-session" not in cast.shown
        assert "of-the-command" not in cast.shown
        assert "$ echo *** $TOKEN $X\r\n*** *** ***\r\n" in cast.shown
        assert cast.shown.endswith("\r\n***\r\n")

    async def test_output_that_nobody_reads_is_recorded(self, client: AsyncClient) -> None:
        async with client.create(record=True) as session:
            await session.start("echo begun; sleep 0.5; echo unread", exec_id="unread")

            async def recorded() -> bool:
                return "exec unread ended: ok, exit code 0" in (await recording_of(session)).markers

            await eventually(recorded, RECORDED_WITHIN_S, "the end is recorded")
            cast = await recording_of(session)
        assert cast.shown == "$ echo begun; sleep 0.5; echo unread\r\nbegun\r\nunread\r\n"

    async def test_what_a_client_has_read_is_recorded_once(self, client: AsyncClient) -> None:
        async with client.create(record=True) as session:
            seen = b""
            async for event in session.stream("echo streamed; echo twice", exec_id="e"):
                seen += getattr(event, "data", b"")
            await session.run("echo streamed; echo twice", exec_id="e")
            cast = await recording_of(session)
        assert seen == b"streamed\ntwice\n"
        assert cast.shown == "$ echo streamed; echo twice\r\nstreamed\r\ntwice\r\n"
        assert cast.markers[1:] == ["exec e started", "exec e ended: ok, exit code 0"]

    async def test_shells_and_terminals_are_recorded(self, client: AsyncClient) -> None:
        async with client.create(record=True) as session:
            await session.shell("main").run("echo in a shell", timeout_s=30)
            terminal = await session.terminal("echo on a terminal", rows=30, cols=100)
            await terminal.wait()

            async def recorded() -> bool:
                return "on a terminal\r\n" in (await recording_of(session)).shown

            await eventually(recorded, RECORDED_WITHIN_S, "the terminal's output is recorded")
            cast = await recording_of(session)
        assert cast.shown.startswith("(main) $ echo in a shell\r\nin a shell\r\n$ echo on a terminal\r\n")
        assert "100x30" in [event.data for event in cast.events if event.code == "r"]

    async def test_what_is_not_text_is_replaced(self, client: AsyncClient) -> None:
        async with client.create(record=True) as session:
            await ok(session, "printf 'caf\\303'; sleep 0.3; printf '\\251 \\377 end'")
            await ok(session, "echo next")
            cast = await recording_of(session)
        assert "café \N{REPLACEMENT CHARACTER} end\r\n$ echo next\r\nnext\r\n" in cast.shown

    async def test_a_session_without_a_recording_says_so(
        self, client: AsyncClient, session: AsyncSession
    ) -> None:
        assert not session.info.record
        with pytest.raises(NotFound, match=r"created without record=True"):
            await recording_of(session)
        for unknown in ("ses_" + "0" * 32, "nonsense"):
            with pytest.raises(NotFound):
                async for _ in client.recording(unknown):
                    pass

    async def test_a_recording_continues_after_a_loss(
        self, client: AsyncClient, service_harness: ServiceHarness
    ) -> None:
        async with client.create(record=True) as session:
            await ok(session, "echo before")
            await service_harness.lose(session.id)

            async def recreated() -> bool:
                try:
                    await session.recreate()
                except SandlotError:  # the loss is not seen yet
                    return False
                return True

            await eventually(recreated, RECORDED_WITHIN_S, "the session has a new sandbox")
            await ok(session, "echo after")
            cast = await recording_of(session)
        assert cast.shown == "$ echo before\r\nbefore\r\n$ echo after\r\nafter\r\n"
        assert "the sandbox was lost" in cast.markers

    async def test_a_thread_that_is_not_recorded_differs(self, client: AsyncClient) -> None:
        thread = unique()
        async with deleted_afterwards(client.thread(thread)):
            with pytest.raises(ThreadDiffers, match="it is not recorded"):
                await client.thread(thread, record=True)
            assert not (await client.thread(thread, record=True, if_different="keep")).info.record

    async def test_a_tenant_reads_its_own_recordings_only(
        self, client: AsyncClient, service_harness: ServiceHarness
    ) -> None:
        if (stranger := service_harness.stranger) is None:
            pytest.skip("this service has one caller in these tests")
        async with client.create(record=True) as mine:
            await ok(mine, "echo mine")
            assert "mine" in (await recording_of(mine)).shown
            with pytest.raises(NotFound):
                async for _ in stranger.recording(mine.id):
                    pass
