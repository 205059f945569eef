"""Running commands: exit codes, channels, input, timeouts, exec ids and limits."""

from __future__ import annotations

import asyncio
import time

import pytest

from sandlot.client.async_session import AsyncSession
from sandlot.client.result import CommandFailed
from sandlot.domain.errors import Busy, Conflict, InvalidRequest
from sandlot.domain.execution import OnLimit, Verdict
from sandlot.domain.ids import is_exec_id, new_exec_id
from sandlot.testing.eventually import eventually
from sandlot.testing.service_suite.commands.background import EventReader
from sandlot.testing.service_suite.harness import Cases, ServiceHarness, ok, unique


class ExecCases(Cases):
    async def test_channels_and_code(self, session: AsyncSession) -> None:
        result = await session.run("echo out; echo err >&2; exit 3")
        assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 3)
        assert (result.verdict, result.ok) == (Verdict.NONZERO, False)

    async def test_every_field_of_a_result(
        self, session: AsyncSession, service_harness: ServiceHarness
    ) -> None:
        result = await session.run("echo hello")
        assert (result.exit_code, result.output, result.verdict, result.ok) == (
            0,
            "hello\n",
            Verdict.OK,
            True,
        )
        assert (result.timed_out, result.truncated) == (False, False)
        assert (result.session_id, result.generation) == (session.id, 1)
        assert is_exec_id(result.exec_id)
        assert result.output_bytes == 6
        assert result.duration_ms > 0
        assert (result.peak_memory_bytes > 500_000) == service_harness.measures_memory
        assert result["output"] == result.output
        assert "exit_code" in result
        assert result.get("nothing") is None

    async def test_output_in_arrival_order(self, session: AsyncSession) -> None:
        # The command prints each line after the reader received the one before: stdout and stderr
        # are two pipes, and have no order between them.
        command = "echo o1; read x; echo e1 >&2; read x; echo o2; read x; echo e2 >&2"
        running = await session.start(command, stdin=True)
        reader = EventReader(running.events())
        for word in (b"o1\n", b"e1\n", b"o2\n"):
            await reader.read_until(word)
            await running.write(b"\n")
        result = await running.wait(20)
        assert result.output == "o1\ne1\no2\ne2\n"
        assert (result.stdout, result.stderr) == ("o1\no2\n", "e1\ne2\n")

    @pytest.mark.parametrize("code", [0, 1, 2, 42, 126, 255])
    async def test_exit_codes(self, session: AsyncSession, code: int) -> None:
        result = await session.run(f"exit {code}")
        assert result.exit_code == code
        assert result.verdict is (Verdict.OK if code == 0 else Verdict.NONZERO)

    async def test_argv_is_not_a_shell_string(self, session: AsyncSession) -> None:
        result = await session.run(["printf", "%s|", "a b", "$HOME", "ünï", ";", ""])
        assert result.stdout == "a b|$HOME|ünï|;||"

    @pytest.mark.parametrize(
        "command", ["no-such-program x", ["no-such-program", "x"]], ids=["shell", "argv"]
    )
    async def test_missing_program(self, session: AsyncSession, command: str | list[str]) -> None:
        result = await session.run(command)
        assert result.exit_code == 127
        assert "no-such-program" in result.stderr
        assert result.verdict is Verdict.NONZERO

    async def test_syntax_error_is_a_result(self, session: AsyncSession) -> None:
        result = await session.run("echo 'never closed")
        assert result.exit_code == 2
        assert "unexpected EOF" in result.stderr

    async def test_who_and_where(self, session: AsyncSession) -> None:
        assert await ok(session, "whoami; pwd; echo $HOME") == "sandboxuser\n/workspace\n/workspace\n"
        # The service chooses the uid; each sandbox may have its own.
        assert int(await ok(session, "id -u")) >= 1000

    async def test_cwd(self, session: AsyncSession) -> None:
        await session.files.mkdir("sub/folder")
        assert await ok(session, "pwd", cwd="/workspace/sub/folder") == "/workspace/sub/folder\n"
        assert await ok(session, "pwd") == "/workspace\n"

    @pytest.mark.parametrize("cwd", ["/nowhere", "relative", "/etc/passwd"])
    async def test_cwd_that_cannot_be(self, session: AsyncSession, cwd: str) -> None:
        with pytest.raises(InvalidRequest):
            await session.run("true", cwd=cwd)

    async def test_env_of_one_command(self, session: AsyncSession) -> None:
        value = "two words\nand a line 'quoted' ü"
        assert await ok(session, 'printf %s "$VALUE"', env={"VALUE": value}) == value
        assert await ok(session, 'echo "[$VALUE]"') == "[]\n"

    async def test_nothing_lasts_between_commands_but_files(self, session: AsyncSession) -> None:
        await ok(session, "cd /tmp; export LASTS=no; echo yes >/workspace/lasts")
        assert await ok(session, 'pwd; echo "[$LASTS]"; cat lasts') == "/workspace\n[]\nyes\n"

    async def test_stdin(self, session: AsyncSession) -> None:
        assert (await session.run("cat; echo end", stdin="text ü\n")).stdout == "text ü\nend\n"
        assert (await session.run("wc -c", stdin=b"")).stdout == "0\n"

    async def test_large_binary_stdin(self, session: AsyncSession) -> None:
        data = bytes(range(256)) * 2000
        result = await session.run("cat", stdin=data)
        assert result.raw.stdout == data

    async def test_stdin_is_at_its_end_unless_given(self, session: AsyncSession) -> None:
        assert (await session.run("cat; echo done", timeout_s=30)).stdout == "done\n"

    async def test_stdin_that_nobody_reads(self, session: AsyncSession) -> None:
        assert (await session.run("echo done", stdin=b"x" * 500_000)).stdout == "done\n"

    async def test_raw_bytes_of_a_result(self, session: AsyncSession) -> None:
        result = await session.run(r"printf 'a\000b\377\376\303\050'; printf '\200' >&2")
        assert result.raw.stdout == b"a\x00b\xff\xfe\xc3\x28"
        assert result.raw.stderr == b"\x80"
        assert "�" in result.stdout

    async def test_unicode(self, session: AsyncSession) -> None:
        text = "Grüße, 世界 🎉 — ﷽"
        assert await ok(session, f"echo '{text}'") == text + "\n"

    async def test_large_output(self, session: AsyncSession) -> None:
        result = await session.run("seq 100000", output_limit=4 * 1024 * 1024)
        assert result.output == "".join(f"{i}\n" for i in range(1, 100_001))
        assert not result.truncated

    async def test_output_limit_met_exactly(self, session: AsyncSession) -> None:
        result = await session.run("printf 12345", output_limit=5)
        assert (result.output, result.truncated) == ("12345", False)

    async def test_output_limit_kills(self, session: AsyncSession) -> None:
        begin = time.monotonic()
        result = await session.run("yes", output_limit=1000, on_limit=OnLimit.KILL, timeout_s=30)
        assert result.verdict is Verdict.OUTPUT_LIMIT
        assert result.output == "y\n" * 500
        assert time.monotonic() - begin < 29

    async def test_timeout_keeps_partial_output(self, session: AsyncSession) -> None:
        begin = time.monotonic()
        result = await session.run("echo before; sleep 60; echo after", timeout_s=2)
        assert (result.verdict, result.timed_out, result.ok) == (Verdict.TIMEOUT, True, False)
        assert result.stdout == "before\n"
        assert result.exit_code != 0
        assert time.monotonic() - begin < 30

    async def test_timeout_spares_others(self, session: AsyncSession) -> None:
        other = asyncio.create_task(session.run("sleep 1; echo alive"))
        assert (await session.run("sleep 50", timeout_s=0.3)).timed_out
        assert (await other).stdout == "alive\n"

    async def test_flood_that_times_out(self, session: AsyncSession) -> None:
        result = await session.run("yes", timeout_s=2, output_limit=10_000)
        assert (result.verdict, len(result.output)) == (Verdict.TIMEOUT, 10_000)
        assert result.output.startswith("y\n" * 2500)

    async def test_check(self, session: AsyncSession) -> None:
        assert (await session.run("echo fine", check=True)).ok
        with pytest.raises(CommandFailed) as caught:
            await session.run("echo why >&2; exit 9", check=True)
        assert caught.value.result.exit_code == 9
        assert "why" in caught.value.message

    async def test_same_id_runs_once(self, session: AsyncSession) -> None:
        exec_id, file = new_exec_id(), unique("once")
        command = f"echo run >>{file}; echo hello; echo err >&2; exit 4"
        results = await asyncio.gather(*(session.run(command, exec_id=exec_id) for _ in range(8)))
        assert {(r.stdout, r.stderr, r.exit_code, r.exec_id) for r in results} == {
            ("hello\n", "err\n", 4, exec_id)
        }
        assert await ok(session, f"cat {file}") == "run\n"

    async def test_same_id_later_gives_the_one_result(self, session: AsyncSession) -> None:
        first = await session.run("echo $$; exit 2", exec_id=new_exec_id())
        again = await session.run("echo $$; exit 2", exec_id=first.exec_id)
        assert (again.output, again.exit_code) == (first.output, 2)
        assert again.raw.exited == first.raw.exited

    @pytest.mark.parametrize("change", [{"env": {"A": "1"}}, {"cwd": "/tmp"}, {"timeout_s": 9}])
    async def test_same_id_with_other_options_is_a_conflict(
        self, session: AsyncSession, change: dict[str, object]
    ) -> None:
        first = await session.run("true")
        with pytest.raises(Conflict):
            await session.run("true", exec_id=first.exec_id, **change)  # type: ignore[arg-type]

    async def test_same_id_with_another_command_is_a_conflict(self, session: AsyncSession) -> None:
        first = await session.run("true")
        with pytest.raises(Conflict):
            await session.run("false", exec_id=first.exec_id)

    async def test_result_by_id_later(self, session: AsyncSession) -> None:
        result = await session.run("echo kept; exit 6")
        status = await (await session.exec(result.exec_id)).status()
        assert (status.exec_id, status.running) == (result.exec_id, False)
        assert status.result is not None
        assert (status.result.output, status.result.exit_code) == (b"kept\n", 6)
        assert (status.result.session_id, status.result.generation) == (session.id, 1)

    async def test_many_at_once(self, session: AsyncSession, service_harness: ServiceHarness) -> None:
        count = service_harness.max_execs
        results = await asyncio.gather(*(session.run(f"echo {i}") for i in range(count)))
        assert [result.output for result in results] == [f"{i}\n" for i in range(count)]

    async def test_cap_of_concurrent_execs(
        self, fresh: AsyncSession, service_harness: ServiceHarness
    ) -> None:
        running = [await fresh.start("sleep 60") for _ in range(service_harness.max_execs)]
        with pytest.raises(Busy) as caught:
            await fresh.run("true")
        assert caught.value.retryable
        assert not caught.value.may_have_executed
        await running[0].kill()
        await running[0].wait(20)

        async def accepted() -> bool:
            try:
                return (await fresh.run("true")).ok
            except Busy:
                return False

        await eventually(accepted, 20, "room for another exec")

    async def test_a_list_says_what_when_and_how(self, fresh: AsyncSession) -> None:
        """U19: the list had only the ids and whether each exec is running."""
        began = time.time()
        await fresh.run("echo " + "x" * 500 + "; exit 3", exec_id="long")
        await fresh.run(["echo", "two", "words"], exec_id="words")
        await fresh.start("sleep 60", exec_id="running")
        by_id = {summary.exec_id: summary for summary in await fresh.execs()}
        long, words, running = (by_id[exec_id] for exec_id in ("long", "words", "running"))
        assert long.command.startswith("echo xxx")
        assert len(long.command) <= 161
        assert (long.exit_code, long.output_end, long.running) == (3, 501, False)
        assert long.duration_ms is not None
        assert (words.command, words.exit_code) == ("echo two words", 0)
        assert (running.command, running.exit_code, running.duration_ms) == ("sleep 60", None, None)
        for summary in by_id.values():
            assert summary.started_at is not None
            assert began - 5 < summary.started_at < time.time() + 5

    async def test_execs_are_listed(self, fresh: AsyncSession) -> None:
        assert list(await fresh.execs()) == []
        done = await fresh.run("true")
        running = await fresh.start("sleep 60")
        in_shell = await fresh.run("true", shell="named")
        listed = {summary.exec_id: (summary.running, summary.shell) for summary in await fresh.execs()}
        assert listed == {
            done.exec_id: (False, None),
            running.id: (True, None),
            in_shell.exec_id: (False, "named"),
        }

    @pytest.mark.parametrize(
        "options",
        [
            {"timeout_s": 0},
            {"timeout_s": -1},
            {"timeout_s": 1e9},
            {"output_limit": 0},
            {"output_limit": 1 << 40},
            {"exec_id": "no spaces"},
            {"exec_id": "x" * 65},
            {"shell": "no/slash"},
            {"env": {"A=B": "1"}},
            {"env": {"A": "nul\0"}},
            {"cwd": "/nul\0"},
        ],
        ids=str,
    )
    async def test_options_that_cannot_be(self, session: AsyncSession, options: dict[str, object]) -> None:
        with pytest.raises(InvalidRequest):
            await session.run("true", **options)  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        "command", ["nul\0", [], "x" * (3 * 1024 * 1024 + 1)], ids=["nul", "empty", "huge"]
    )
    async def test_commands_that_cannot_be(self, session: AsyncSession, command: str | list[str]) -> None:
        with pytest.raises(InvalidRequest):
            await session.run(command)
