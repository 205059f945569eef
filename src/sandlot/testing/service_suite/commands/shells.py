"""Shells: they keep state between commands, do not affect each other, and report how they end."""

from __future__ import annotations

import asyncio

import pytest

from sandlot.client.async_session import AsyncSession
from sandlot.domain.errors import InvalidRequest, NotFound
from sandlot.domain.execution import Verdict
from sandlot.testing.service_suite.commands.background import EventReader
from sandlot.testing.service_suite.harness import Cases, ok, unique


class ShellCases(Cases):
    async def test_state_is_kept(self, session: AsyncSession) -> None:
        shell = session.shell(unique())
        assert (await shell.run("mkdir -p /tmp/kept; cd /tmp/kept; A=1; export B=2")).ok
        assert (await shell.run("pwd; echo $A $B; bash -c 'echo [$A] $B'")).output == "/tmp/kept\n1 2\n[] 2\n"

    async def test_default_name(self, fresh: AsyncSession) -> None:
        await fresh.shell().run("X=1")
        assert (await fresh.shell("main").run("echo $X")).output == "1\n"
        assert [shell.name for shell in await fresh.shells()] == ["main"]

    async def test_run_with_shell_is_the_same(self, session: AsyncSession) -> None:
        name = unique()
        await ok(session, "X=here", shell=name)
        assert (await session.shell(name).run("echo $X")).output == "here\n"

    async def test_each_command_has_its_code(self, session: AsyncSession) -> None:
        shell = session.shell(unique())
        codes = [(await shell.run(command)).exit_code for command in ("true", "false", "(exit 7)", "true")]
        assert codes == [0, 1, 7, 0]

    async def test_channels(self, session: AsyncSession) -> None:
        result = await session.shell(unique()).run("echo out; echo err >&2")
        assert (result.stdout, result.stderr) == ("out\n", "err\n")

    async def test_shells_are_apart(self, session: AsyncSession) -> None:
        one, two = session.shell(unique()), session.shell(unique())
        await one.run("cd /tmp; X=one")
        await two.run("X=two")
        assert (await one.run("pwd; echo $X")).output == "/tmp\none\n"
        assert (await two.run("pwd; echo $X")).output == "/workspace\ntwo\n"
        assert await ok(session, 'pwd; echo "[$X]"') == "/workspace\n[]\n"

    async def test_commands_take_turns(self, session: AsyncSession) -> None:
        shell = session.shell(unique())
        results = await asyncio.gather(*(shell.run(f"X={i}; sleep 0.05; echo $X") for i in range(6)))
        assert [result.output for result in results] == [f"{i}\n" for i in range(6)]

    async def test_two_at_once_do_not_mix(self, session: AsyncSession) -> None:
        async def run_commands(name: str) -> None:
            for i in range(5):
                result = await session.run(f"N={name}{i}; sleep 0.02; echo $N; echo $N >&2", shell=name)
                assert result.stdout == result.stderr == f"{name}{i}\n"

        await asyncio.gather(run_commands(unique("left")), run_commands(unique("right")))

    async def test_exit_is_told(self, session: AsyncSession) -> None:
        shell = session.shell(unique())
        assert not (await shell.run("X=1")).raw.exited.shell_ended
        result = await shell.run("echo bye; exit 5")
        assert (result.output, result.exit_code, result.raw.exited.shell_ended) == ("bye\n", 5, True)
        assert (await shell.run('echo "again[$X]"')).output == "again[]\n"

    async def test_timeout_ends_the_shell_and_keeps_its_folder(self, session: AsyncSession) -> None:
        shell = session.shell(unique())
        await shell.run("mkdir -p /tmp/deep; cd /tmp/deep; X=1")
        result = await shell.run("echo partial; sleep 60", timeout_s=2)
        assert (result.verdict, result.output) == (Verdict.TIMEOUT, "partial\n")
        assert result.raw.exited.shell_ended
        assert (await shell.run('pwd; echo "[$X]"')).output == "/tmp/deep\n[]\n"

    @pytest.mark.parametrize("broken", ["echo )", "echo 'open"])
    async def test_syntax_error_leaves_it_alive(self, session: AsyncSession, broken: str) -> None:
        shell = session.shell(unique())
        await shell.run("X=1")
        result = await shell.run(broken)
        assert result.exit_code != 0
        assert not result.raw.exited.shell_ended
        assert (await shell.run("echo $X")).output == "1\n"

    async def test_input(self, session: AsyncSession) -> None:
        shell = session.shell(unique())
        assert (await shell.run("cat; X=2", stdin=b"given")).stdout == "given"
        assert (await shell.run("cat; echo $X")).output == "2\n"

    async def test_runs_once_per_id(self, session: AsyncSession) -> None:
        shell, file = session.shell(unique()), unique("count")
        first = await shell.run(f"echo run >>{file}; echo hi", exec_id=unique())
        again = await shell.run(f"echo run >>{file}; echo hi", exec_id=first.exec_id)
        assert again.output == first.output == "hi\n"
        assert await session.files.read_text(file) == "run\n"

    async def test_shells_are_listed(self, fresh: AsyncSession) -> None:
        assert list(await fresh.shells()) == []
        await fresh.shell("one").run("cd /tmp")
        (shell,) = await fresh.shells()
        assert (shell.name, shell.cwd, shell.busy) == ("one", "/tmp", False)
        assert shell.pid > 0
        running = await fresh.start("echo on; sleep 60", shell="one")
        await EventReader(running.events()).read_until(b"on")
        (shell,) = await fresh.shells()
        assert shell.busy
        await running.kill()

    async def test_close(self, fresh: AsyncSession) -> None:
        shell = fresh.shell("one")
        await shell.run("X=1; cd /tmp")
        await shell.close()
        assert list(await fresh.shells()) == []
        assert (await shell.run('pwd; echo "[$X]"')).output == "/workspace\n[]\n"

    async def test_close_ends_what_runs_in_it(self, fresh: AsyncSession) -> None:
        running = await fresh.start("echo on; sleep 60", shell="one")
        await EventReader(running.events()).read_until(b"on")
        await fresh.shell("one").close()
        result = await running.wait(20)
        assert result.raw.exited.shell_ended
        assert not result.ok

    async def test_close_of_what_is_not_there(self, session: AsyncSession) -> None:
        with pytest.raises(NotFound):
            await session.shell("never-used").close()

    async def test_argv_has_no_place_in_a_shell(self, session: AsyncSession) -> None:
        with pytest.raises(InvalidRequest):
            await session.run(["true"], shell="s")
