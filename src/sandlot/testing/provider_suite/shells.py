"""Shells: they keep state from one exec to the next and report how they end."""

from __future__ import annotations

import asyncio

import pytest
import pytest_asyncio

from sandlot.domain.errors import NotFound
from sandlot.domain.execution import ExecRequest, Output, Verdict
from sandlot.providers.base import Sandbox
from sandlot.testing.eventually import eventually
from sandlot.testing.provider_suite.harness import Cases, ok, require, run


class ShellCases(Cases):
    @pytest_asyncio.fixture(loop_scope="session", autouse=True)
    async def _bash(self, request: pytest.FixtureRequest) -> None:
        if request.function.__qualname__.startswith("ShellCases"):
            await require(request.getfixturevalue("sandbox"), "bash")

    async def test_state_over_fifty_execs(self, sandbox: Sandbox) -> None:
        await ok(
            sandbox, "mkdir -p /tmp/a; cd /tmp/a; export V=1; f() { echo f:$1:$V; }; arr=(x y)", shell="state"
        )
        for i in range(50):
            assert await ok(sandbox, f"V=$((V+1)); f {i}; pwd", shell="state") == f"f:{i}:{i + 2}\n/tmp/a\n"
        assert await ok(sandbox, "echo ${arr[1]}; sh -c 'echo $V'", shell="state") == "y\n51\n"

    @pytest.mark.parametrize("broken", ["echo 'open", 'echo "open', "echo )", "cat <<END", "if true"])
    async def test_a_command_that_bash_cannot_read_leaves_it_alive(
        self, sandbox: Sandbox, broken: str
    ) -> None:
        await ok(sandbox, "X=1", shell="syntax")
        result = await run(sandbox, broken, shell="syntax")
        assert result.stderr
        # Bash only warns about an unfinished here-document, and runs the command.
        assert (result.exit_code == 0) == broken.startswith("cat"), result
        assert not result.exited.shell_ended
        assert await ok(sandbox, "echo $X", shell="syntax") == "1\n"

    async def test_each_command_has_its_own_code(self, sandbox: Sandbox) -> None:
        codes = [
            (await run(sandbox, c, shell="codes")).exit_code for c in ("true", "false", "(exit 7)", "true")
        ]
        assert codes == [0, 1, 7, 0]

    async def test_errexit_lasts_and_ends_the_shell_honestly(self, fresh: Sandbox) -> None:
        assert not (await run(fresh, "set -e; X=1", shell="e")).exited.shell_ended
        for i in range(50):
            assert await ok(fresh, f"true; echo {i} $X", shell="e") == f"{i} 1\n"
        result = await run(fresh, "echo before; false; echo after", shell="e")
        assert (result.stdout, result.exit_code) == (b"before\n", 1)
        assert result.exited.shell_ended
        after = await run(fresh, "false; echo on:$X", shell="e")
        assert after.stdout == b"on:\n"

    async def test_two_shells_do_not_mix(self, sandbox: Sandbox) -> None:
        async def run_commands(name: str) -> None:
            for i in range(25):
                script = f"N={name}{i}; sleep 0.01; echo $N; echo $N >&2"
                result = await run(sandbox, script, shell=name)
                assert result.stdout == result.stderr == f"{name}{i}\n".encode()

        await asyncio.gather(run_commands("left"), run_commands("right"))

    async def test_one_shell_takes_turns(self, sandbox: Sandbox) -> None:
        await ok(sandbox, "N=0", shell="turns")
        await asyncio.gather(*(ok(sandbox, "M=$N; sleep 0.01; N=$((M+1))", shell="turns") for _ in range(20)))
        assert await ok(sandbox, "echo $N", shell="turns") == "20\n"

    async def test_exit_is_told(self, sandbox: Sandbox) -> None:
        result = await run(sandbox, "cd /tmp; echo bye; exit 5", shell="exits")
        assert (result.stdout, result.exit_code, result.exited.shell_ended) == (b"bye\n", 5, True)
        assert await ok(sandbox, "echo again", shell="exits") == "again\n"

    async def test_killed_shell_is_told(self, sandbox: Sandbox) -> None:
        result = await run(sandbox, "echo x; kill -9 $$; sleep 5", shell="killed")
        assert (result.stdout, result.exit_code, result.exited.shell_ended) == (b"x\n", 137, True)
        assert await ok(sandbox, "echo again", shell="killed") == "again\n"

    async def test_shell_that_dies_between_execs_is_told(self, sandbox: Sandbox) -> None:
        pid = await ok(sandbox, "(sleep 1.5; kill -9 $$) & X=1; echo $$", shell="between")

        async def reaped() -> bool:
            return (await run(sandbox, f"kill -0 {pid}")).exit_code != 0

        await eventually(reaped, 20, "the shell is gone")
        result = await run(sandbox, "echo v:$X", shell="between")
        assert result.stdout == b"v:\n"
        assert result.exited.shell_restarted

    async def test_timeout_ends_the_shell_and_keeps_its_folder(self, sandbox: Sandbox) -> None:
        await ok(sandbox, "mkdir -p /tmp/deep; cd /tmp/deep; X=1", shell="slow")
        result = await run(sandbox, "echo partial; sleep 60; touch /tmp/never", shell="slow", timeout_s=2)
        assert (result.stdout, result.verdict, result.exited.shell_ended) == (
            b"partial\n",
            Verdict.TIMEOUT,
            True,
        )
        assert (
            await ok(sandbox, "pwd; echo v:$X; ls /tmp/never 2>/dev/null | wc -l", shell="slow")
            == "/tmp/deep\nv:\n0\n"
        )

    async def test_background_jobs_belong_to_the_shell(self, sandbox: Sandbox) -> None:
        await ok(sandbox, "sleep 0.5 & JOB=$!", shell="jobs")
        assert await ok(sandbox, "wait $JOB; echo waited:$?", shell="jobs") == "waited:0\n"

    async def test_background_output_does_not_reach_the_next_exec(self, sandbox: Sandbox) -> None:
        await ok(sandbox, "(for i in $(seq 20); do echo noise; sleep 0.05; done) &", shell="noise")
        for _ in range(10):
            assert await ok(sandbox, "sleep 0.05; echo signal", shell="noise") == "signal\n"

    async def test_syntax_error_is_a_result(self, sandbox: Sandbox) -> None:
        result = await run(sandbox, "X=1; if then fi", shell="syntax")
        assert result.exit_code != 0
        assert b"syntax error" in result.stderr
        assert not result.exited.shell_ended
        assert await ok(sandbox, "echo fine", shell="syntax") == "fine\n"

    @pytest.mark.parametrize(
        "command", ["break", "continue", "return 3", "set -u", "set -x", "exec 2>/dev/null", "cd /"]
    )
    async def test_control_words_do_not_derail_it(self, sandbox: Sandbox, command: str) -> None:
        name = "odd-" + "".join(filter(str.isalnum, command))
        await run(sandbox, command, shell=name)
        result = await run(sandbox, "echo alive", shell=name)
        assert result.stdout == b"alive\n"

    async def test_overridden_builtins_do_not_derail_it(self, sandbox: Sandbox) -> None:
        await run(
            sandbox,
            "printf() { :; }; eval() { :; }; read() { :; }; echo() { command echo fake; }",
            shell="over",
        )
        assert (await run(sandbox, "(exit 6)", shell="over")).exit_code == 6

    async def test_imitated_markers_are_output(self, sandbox: Sandbox) -> None:
        script = r"printf '0 /tmp\0'; printf '0 /tmp\0' >&2; echo __sandlot=$__sandlot | head -c 20 >/dev/null; (exit 3)"
        result = await run(sandbox, script, shell="marker")
        assert (result.stdout, result.stderr, result.exit_code) == (b"0 /tmp\0", b"0 /tmp\0", 3)

    async def test_input(self, sandbox: Sandbox) -> None:
        assert (await run(sandbox, "cat; X=2", shell="input", stdin=b"given")).stdout == b"given"
        assert await ok(sandbox, "cat; echo $X", shell="input") == "2\n"

    async def test_long_command(self, sandbox: Sandbox) -> None:
        command = "cat <<'END' | wc -c\n" + ("y" * 99 + "\n") * 15_000 + "END\n"
        assert await ok(sandbox, command, shell="long", timeout_s=60) == "1500000\n"

    async def test_list_and_close(self, fresh: Sandbox) -> None:
        await ok(fresh, "cd /tmp", shell="one")
        (shell,) = await fresh.list_shells()
        assert (shell.name, shell.cwd, shell.busy) == ("one", "/tmp", False)
        execution = await fresh.start(ExecRequest(command="echo on; sleep 60", shell="one"))
        async for event in execution.events():
            if isinstance(event, Output):
                break
        await fresh.close_shell("one")
        assert (await (await fresh.attach(execution.exec_id)).result()).exited.shell_ended
        assert list(await fresh.list_shells()) == []
        with pytest.raises(NotFound):
            await fresh.close_shell("one")

    async def test_replay_of_a_shell_exec(self, sandbox: Sandbox) -> None:
        request = ExecRequest(
            command="echo counted >>/tmp/shell-count; echo hi", shell="replay", exec_id="shell-once"
        )
        first = await sandbox.run(request)
        second = await sandbox.run(request)
        assert first.output == second.output == b"hi\n"
        assert await ok(sandbox, "wc -l </tmp/shell-count") == "1\n"
