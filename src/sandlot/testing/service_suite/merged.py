"""``merge_output``: stdout and stderr as one pipe, so that their order is exact."""

from __future__ import annotations

import pytest

from sandlot.client.async_client import AsyncClient
from sandlot.client.async_session import AsyncSession
from sandlot.domain.errors import Conflict
from sandlot.domain.execution import Channel, Output, PtySize
from sandlot.domain.ids import new_exec_id
from sandlot.testing.service_suite.harness import Cases, deleted, unique

REPETITIONS = 30
# Each write is a line on the other channel than the last one.
INTERLEAVED = "\n".join(f"echo {i} >&{1 + i % 2}" for i in range(40))
IN_ORDER = "".join(f"{i}\n" for i in range(40))


class MergedOutputCases(Cases):
    @pytest.mark.parametrize("shell", [None, "merged"])
    async def test_merged_output_is_in_order(self, session: AsyncSession, shell: str | None) -> None:
        for _ in range(REPETITIONS):
            result = await session.run(INTERLEAVED, merge_output=True, shell=shell)
            assert (result.stdout, result.stderr, result.output) == (IN_ORDER, "", IN_ORDER)

    async def test_merged_output_ends_with_the_command(self, session: AsyncSession) -> None:
        shell = session.shell(unique())
        merged = await shell.run("echo a; echo b >&2; echo c", merge_output=True)
        assert (merged.stdout, merged.stderr) == ("a\nb\nc\n", "")
        apart = await shell.run("echo a; echo b >&2; echo c")
        assert (apart.stdout, apart.stderr) == ("a\nc\n", "b\n")

    async def test_merged_output_while_it_comes(self, session: AsyncSession) -> None:
        events = session.stream(INTERLEAVED, merge_output=True)
        heard = [event async for event in events if isinstance(event, Output)]
        assert {output.channel for output in heard} == {Channel.STDOUT}
        assert b"".join(output.data for output in heard).decode() == IN_ORDER

        pieces: list[str] = []
        result = await session.run(
            INTERLEAVED, merge_output=True, on_stdout=pieces.append, on_stderr=pieces.append
        )
        assert ("".join(pieces), result.stdout) == (IN_ORDER, IN_ORDER)

    async def test_merged_output_of_a_background_command(self, session: AsyncSession) -> None:
        running = await session.start("cat >&2; echo out", stdin=True, merge_output=True)
        await running.write("in\n")
        await running.close_stdin()
        result = await running.wait(20)
        assert (result.stdout, result.stderr) == ("in\nout\n", "")

    async def test_merged_output_in_a_thread(self, client: AsyncClient) -> None:
        thread = unique("thread")
        async with deleted(client.thread(thread)):
            result = await client.run_in_thread(thread, "echo a; echo b >&2; echo c", merge_output=True)
            assert (result.stdout, result.stderr) == ("a\nb\nc\n", "")

    async def test_merged_output_of_what_cannot_be_started(self, session: AsyncSession) -> None:
        result = await session.run(["no-such-program"], merge_output=True)
        assert (result.exit_code, result.stderr) == (127, "")
        assert "no-such-program" in result.stdout

    async def test_merged_output_on_a_terminal_changes_nothing(self, session: AsyncSession) -> None:
        running = await session.start("echo a; echo b >&2", pty=PtySize(), merge_output=True)
        result = await running.wait(20)
        assert (result.stdout, result.stderr) == ("a\r\nb\r\n", "")

    async def test_merged_and_not_are_two_commands(self, session: AsyncSession) -> None:
        exec_id = new_exec_id()
        first = await session.run("echo a", exec_id=exec_id, merge_output=True)
        assert (await session.run("echo a", exec_id=exec_id, merge_output=True)).stdout == first.stdout
        with pytest.raises(Conflict):
            await session.run("echo a", exec_id=exec_id)
