"""Background execs: input while they run, terminals, signals, and how they end."""

from __future__ import annotations

import asyncio

import pytest

from sandlot.client.async_session import AsyncSession
from sandlot.domain.errors import InvalidRequest, NotFound
from sandlot.domain.execution import ExecEvent, Exited, Output, PtySize, Verdict
from sandlot.testing.eventually import eventually
from sandlot.testing.service_suite.harness import Cases, ok, unique


class EventReader:
    """Reads an exec's events and collects its output, so that a case can wait for a text."""

    def __init__(self, events: object) -> None:
        self._events = events
        self.received = b""
        self.exited: Exited | None = None

    async def read_until(self, wanted: bytes) -> None:
        async with asyncio.timeout(30):
            while wanted not in self.received:
                await self._record(await anext(self._events))  # type: ignore[call-overload]

    async def read_to_end(self) -> Exited:
        async with asyncio.timeout(30):
            while self.exited is None:
                await self._record(await anext(self._events))  # type: ignore[call-overload]
        return self.exited

    async def _record(self, event: ExecEvent) -> None:
        if isinstance(event, Output):
            self.received += event.data
        elif isinstance(event, Exited):
            self.exited = event


class BackgroundCases(Cases):
    async def test_start_returns_at_once(self, session: AsyncSession) -> None:
        # The command waits for a line, which is written only after start() has returned.
        async with asyncio.timeout(30):
            running = await session.start("read x; echo done; exit 3", stdin=True)
        assert (await running.status()).running
        await running.write(b"\n")
        result = await running.wait()
        assert (result.output, result.exit_code, result.exec_id) == ("done\n", 3, running.id)

    async def test_status_waits(self, session: AsyncSession) -> None:
        running = await session.start("read x; echo done", stdin=True)
        assert (await running.status(0.05)).running
        waiting = asyncio.create_task(running.status(20))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        await running.write(b"\n")
        status = await waiting
        assert not status.running
        assert status.result is not None
        assert status.result.output == b"done\n"

    @pytest.mark.parametrize("output_limit", [None, 1024])
    async def test_output_so_far(self, fresh: AsyncSession, output_limit: int | None) -> None:
        """U18: a caller could read the output only by following the command until it ended."""
        running = await fresh.start("echo one; read x; echo two", stdin=True, output_limit=output_limit)
        again = await fresh.exec(running.id)

        async def printed() -> bool:
            return (await again.read()).data == b"one\n"

        await eventually(printed)
        async with asyncio.timeout(20):
            first = await again.read()
            nothing = await again.read(first.next_offset)
        assert (first.text, first.next_offset, first.running, first.exit_code) == ("one\n", 4, True, None)
        assert (nothing.data, nothing.next_offset, nothing.running) == (b"", 4, True)
        await running.write(b"\n")

        async def ended() -> bool:
            return not (await again.status()).running

        await eventually(ended)
        rest = await again.read(first.next_offset)
        assert (rest.text, rest.running, rest.exit_code) == ("two\n", False, 0)
        assert (await again.read()).text == "one\ntwo\n"
        with pytest.raises(NotFound):
            await (await fresh.exec("never-ran")).read()

    async def test_wait_has_its_bound(self, session: AsyncSession) -> None:
        running = await session.start("sleep 30")
        with pytest.raises(TimeoutError):
            await running.wait(0.3)
        assert (await running.status()).running
        await running.kill()

    async def test_goes_on_without_a_reader(self, session: AsyncSession) -> None:
        file = unique("bg")
        running = await session.start(f"sleep 0.5; echo done >{file}")
        await running.detach()

        async def written() -> bool:
            return await session.files.exists(file)

        await eventually(written, 20, "the file of a detached exec")

    async def test_timeout_counts_in_the_background(self, session: AsyncSession) -> None:
        running = await session.start("echo a; sleep 60", timeout_s=2)
        result = await running.wait(20)
        assert (result.verdict, result.output) == (Verdict.TIMEOUT, "a\n")

    async def test_input_while_it_runs(self, session: AsyncSession) -> None:
        running = await session.start("cat", stdin=True)
        reader = EventReader(running.events())
        for word in (b"one\n", b"two\n"):
            await running.write(word)
            await reader.read_until(word)
        await running.write("three ü\n")
        await running.close_stdin()
        exited = await reader.read_to_end()
        assert (reader.received.decode(), exited.code) == ("one\ntwo\nthree ü\n", 0)

    async def test_end_of_input_without_any(self, session: AsyncSession) -> None:
        running = await session.start("cat; echo ended", stdin=True)
        await running.close_stdin()
        assert (await running.wait(20)).output == "ended\n"

    async def test_reads_a_line_at_a_time(self, session: AsyncSession) -> None:
        running = await session.start("read a; echo first $a; read b; echo second $b", stdin=True)
        reader = EventReader(running.events())
        await running.write(b"x\n")
        await reader.read_until(b"first x\n")
        await running.write(b"y\n")
        await reader.read_until(b"second y\n")
        assert (await reader.read_to_end()).code == 0

    async def test_kill(self, session: AsyncSession) -> None:
        running = await session.start("echo begun; sleep 60")
        reader = EventReader(running.events())
        await reader.read_until(b"begun")
        assert await running.kill() >= 1
        result = await running.wait(20)
        assert (result.verdict, result.output) == (Verdict.KILLED, "begun\n")
        assert result.exit_code > 128

    async def test_kill_of_what_has_ended(self, session: AsyncSession) -> None:
        result = await session.run("true")
        assert await (await session.exec(result.exec_id)).kill() == 0
        assert (await (await session.exec(result.exec_id)).wait()).ok

    @pytest.mark.parametrize("number", [2, 15, 9])
    async def test_signal(self, session: AsyncSession, number: int) -> None:
        running = await session.start(["sleep", "60"])
        assert await running.signal(number) >= 1
        result = await running.wait(20)
        assert (result.exit_code, result.raw.exited.signal) == (128 + number, number)
        assert result.verdict is Verdict.NONZERO

    @pytest.mark.parametrize("number", [0, -1, 65])
    async def test_signals_that_are_none(self, session: AsyncSession, number: int) -> None:
        running = await session.start("sleep 60")
        with pytest.raises(InvalidRequest):
            await running.signal(number)
        await running.kill()

    async def test_unknown_exec(self, session: AsyncSession) -> None:
        running = await session.exec("exec_unknown")
        with pytest.raises(NotFound):
            await running.status()
        with pytest.raises(NotFound):
            await running.kill()
        with pytest.raises(NotFound):
            await running.signal(15)
        with pytest.raises(NotFound):
            await running.resize(10, 10)
        with pytest.raises(NotFound):
            await running.wait(5)
        with pytest.raises(NotFound):
            [event async for event in running.events()]


class TerminalCases(Cases):
    async def test_terminal_shows_what_is_typed(self, session: AsyncSession) -> None:
        terminal = await session.terminal(["cat"])
        reader = EventReader(terminal.events())
        await terminal.write(b"typed\n")
        await reader.read_until(b"typed\r\ntyped\r\n")
        await terminal.write(b"\x04")
        assert (await reader.read_to_end()).code == 0

    async def test_login_shell(self, session: AsyncSession) -> None:
        terminal = await session.terminal()
        reader = EventReader(terminal.events())
        await terminal.write("cd /tmp\n")
        await terminal.write("echo at:$(pwd)\n")
        await reader.read_until(b"at:/tmp")
        await terminal.write("exit 7\n")
        assert (await reader.read_to_end()).code == 7

    async def test_size_and_resize(self, session: AsyncSession) -> None:
        command = "stty size; read x; stty size"
        terminal = await session.terminal(["bash", "-c", command], rows=30, cols=100)
        reader = EventReader(terminal.events())
        await reader.read_until(b"30 100")
        await terminal.resize(40, 120)
        await terminal.write("\n")
        await reader.read_until(b"40 120")
        assert (await reader.read_to_end()).code == 0

    async def test_it_is_a_terminal(self, session: AsyncSession) -> None:
        running = await session.start("test -t 0 && test -t 1 && echo both; echo err >&2", pty=PtySize())
        result = await running.wait(20)
        assert "both\r\n" in result.stdout
        assert "err\r\n" in result.stdout
        assert result.stderr == ""

    async def test_resize_without_a_terminal_harms_nothing(self, session: AsyncSession) -> None:
        running = await session.start("read x; echo done", stdin=True)
        with pytest.raises(InvalidRequest):
            await running.resize(10, 10)
        await running.write(b"\n")
        assert (await running.wait(20)).output == "done\n"

    async def test_kill_of_a_terminal(self, session: AsyncSession) -> None:
        terminal = await session.terminal()
        assert await terminal.kill() >= 1
        assert (await terminal.wait(20)).verdict is Verdict.KILLED

    async def test_leaves_the_session_usable(self, session: AsyncSession) -> None:
        assert await ok(session, "echo fine") == "fine\n"
