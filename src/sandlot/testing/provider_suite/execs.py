"""Running commands: exit codes, signals, input, timeouts, exec ids, and leftover processes."""

from __future__ import annotations

import asyncio
import time

import pytest

from sandlot.domain.capacity.limits import MIB
from sandlot.domain.errors import Busy, Conflict, InvalidRequest, NotFound
from sandlot.domain.execution import Channel, ExecRequest, Exited, Output, PtySize, Started, Verdict
from sandlot.domain.ids import new_exec_id
from sandlot.providers.base import Sandbox
from sandlot.testing.eventually import eventually
from sandlot.testing.provider_suite.harness import Cases, ok, require, run


async def count_processes(sandbox: Sandbox, pattern: str) -> int:
    """Counts the processes with the pattern in their command line, except the counting one."""
    script = (
        "n=0; for f in /proc/[0-9]*/cmdline; do "
        f"tr '\\0' ' ' 2>/dev/null <$f | grep -q -- '{pattern[0]}[{pattern[1]}]{pattern[2:]}' && n=$((n+1)); done; echo $n"
    )
    return int(await ok(sandbox, script))


class ExecCases(Cases):
    async def test_channels_and_code(self, sandbox: Sandbox) -> None:
        result = await run(sandbox, "echo out; echo err >&2; exit 3")
        assert (result.stdout, result.stderr, result.exit_code) == (b"out\n", b"err\n", 3)
        assert result.verdict is Verdict.NONZERO
        assert sorted(result.output.splitlines()) == [b"err", b"out"]

    async def test_output_in_arrival_order(self, sandbox: Sandbox) -> None:
        # The command prints each line after the reader received the one before: stdout and stderr
        # are two pipes, and have no order between them.
        script = "for i in 1 2 3; do echo o$i; read x; echo e$i >&2; read x; done"
        execution = await sandbox.start(ExecRequest(command=script, stdin=True))
        async with asyncio.timeout(60):
            async for event in execution.events():
                if isinstance(event, Output) and b"\n" in event.data:
                    await execution.write_stdin(b"\n")
        result = await (await sandbox.attach(execution.exec_id)).result()
        assert result.output == b"o1\ne1\no2\ne2\no3\ne3\n"

    async def test_argv_is_not_a_shell_string(self, sandbox: Sandbox) -> None:
        request = ExecRequest(argv=("printf", "%s|", "a b", "$HOME", "ünï", ""))
        assert (await sandbox.run(request)).stdout == "a b|$HOME|ünï||".encode()

    async def test_missing_program_is_127(self, sandbox: Sandbox) -> None:
        by_argv = await sandbox.run(ExecRequest(argv=("no-such-program",)))
        assert by_argv.exit_code == 127
        assert b"no-such-program" in by_argv.stderr
        assert (await run(sandbox, "no-such-program")).exit_code == 127

    async def test_not_executable_is_126(self, sandbox: Sandbox) -> None:
        assert (await sandbox.run(ExecRequest(argv=("/etc/passwd",)))).exit_code == 126

    async def test_signal_death_is_128_plus_signal(self, sandbox: Sandbox) -> None:
        result = await run(sandbox, "kill -SEGV $$")
        assert (result.exit_code, result.exited.signal) == (139, 11)

    async def test_cwd_and_env(self, sandbox: Sandbox) -> None:
        assert await ok(sandbox, "pwd; echo $HOME") == "/workspace\n/workspace\n"
        assert await ok(sandbox, 'pwd; echo "$A"', cwd="/tmp", env={"A": "x y\nz"}) == "/tmp\nx y\nz\n"

    async def test_missing_cwd_is_refused(self, sandbox: Sandbox) -> None:
        with pytest.raises(InvalidRequest, match="does not exist"):
            await run(sandbox, "true", cwd="/nowhere")

    async def test_cwd_through_proc_is_refused(self, sandbox: Sandbox) -> None:
        with pytest.raises(InvalidRequest):
            await run(sandbox, "true", cwd="/proc/self/fd/7")

    async def test_bound_environment(self, fresh: Sandbox) -> None:
        await fresh.bind(env={"TOKEN": "bound", "OTHER": "x"})
        assert await ok(fresh, "echo $TOKEN $OTHER", env={"OTHER": "own"}) == "bound own\n"
        assert await ok(fresh, "echo $TOKEN", shell="s") == "bound\n"

    async def test_stdin_is_at_its_end_unless_asked_for(self, sandbox: Sandbox) -> None:
        result = await run(sandbox, "cat; echo done", timeout_s=30)
        assert result.stdout == b"done\n"

    async def test_stdin_as_bytes(self, sandbox: Sandbox) -> None:
        data = bytes(range(256)) * 4000
        result = await run(sandbox, "md5sum; exit 4", stdin=data)
        import hashlib

        assert result.stdout.split()[0].decode() == hashlib.md5(data, usedforsecurity=False).hexdigest()
        assert result.exit_code == 4

    async def test_stdin_streamed_both_ways(self, sandbox: Sandbox) -> None:
        execution = await sandbox.start(ExecRequest(command="while read x; do echo got $x; done", stdin=True))
        events = execution.events()
        received = b""
        for word in (b"one", b"two"):
            await execution.write_stdin(word + b"\n")
            while not received.endswith(word + b"\n"):
                event = await asyncio.wait_for(anext(events), 30)
                if isinstance(event, Output):
                    received += event.data
        await execution.close_stdin()
        rest = [event async for event in events]
        assert isinstance(rest[-1], Exited)
        assert rest[-1].code == 0

    async def test_timeout_keeps_partial_output(self, sandbox: Sandbox) -> None:
        begin = time.monotonic()
        result = await run(sandbox, "echo before; sleep 60; echo after", timeout_s=2)
        assert result.timed_out
        assert result.verdict is Verdict.TIMEOUT
        assert result.stdout == b"before\n"
        assert time.monotonic() - begin < 30

    @pytest.mark.parametrize(
        "command",
        [
            "setsid sleep 7{n} & sleep 60",
            "nohup sleep 7{n} >/dev/null 2>&1 & sleep 60",
            "(setsid sh -c 'sleep 7{n} & exit' &) ; sleep 60",
            "(env -i setsid setsid sh -c 'sleep 7{n} & sleep 7{n} & wait' >/dev/null 2>&1 </dev/null &); sleep 60",
            "trap '' TERM INT HUP; sleep 7{n}; sleep 7{n}",
            "sh -c 'kill -STOP $$; sleep 7{n}' & sleep 7{n}",
            "kill -STOP $$; sleep 7{n}",
        ],
        ids=["setsid", "nohup", "double-fork", "no-env", "ignores-term", "stopped-child", "stopped-self"],
    )
    async def test_timeout_ends_everything_that_was_started(self, sandbox: Sandbox, command: str) -> None:
        mark = str(time.time_ns() % 1_000_000).zfill(6)
        result = await run(sandbox, command.format(n=mark), timeout_s=1.5)
        assert result.timed_out

        async def gone() -> bool:
            return await count_processes(sandbox, f"sleep 7{mark}") == 0

        await eventually(gone, 20, "processes of a timed-out command")

    async def test_timeout_spares_other_execs(self, sandbox: Sandbox) -> None:
        other = asyncio.create_task(run(sandbox, "sleep 1.5; echo alive"))
        assert (await run(sandbox, "setsid sleep 50 & sleep 50", timeout_s=0.3)).timed_out
        assert (await other).stdout == b"alive\n"

    async def test_background_child_does_not_hold_the_exec(self, sandbox: Sandbox) -> None:
        begin = time.monotonic()
        result = await run(sandbox, "sleep 30 & echo started", timeout_s=20)
        assert (result.stdout, result.exit_code) == (b"started\n", 0)
        assert time.monotonic() - begin < 20

    async def test_background_child_lives_on_and_may_print(self, fresh: Sandbox) -> None:
        script = "(for i in 1 2 3 4 5 6; do echo tick; sleep 0.1; done; echo end >/workspace/ended) & echo x"
        result = await run(fresh, script)
        assert result.exit_code == 0

        async def ended() -> bool:
            return (await run(fresh, "cat /workspace/ended")).stdout == b"end\n"

        await eventually(ended, 20, "the child finished although its output was closed")

    async def test_server_in_the_background(self, fresh: Sandbox) -> None:
        await require(fresh, "python3")
        begin = time.monotonic()
        await ok(fresh, "python3 -m http.server 8123 &")
        assert time.monotonic() - begin < 25
        fetch = "python3 -c \"import urllib.request as u; print(u.urlopen('http://127.0.0.1:8123/').status)\""

        async def served() -> bool:
            return (await run(fresh, fetch)).stdout == b"200\n"

        await eventually(served, 20, "the server answers")
        assert await served(), "it logged the first request to a closed pipe and must still be there"

    async def test_same_exec_id_runs_once(self, fresh: Sandbox) -> None:
        request = ExecRequest(command="echo run >>counter; echo hello", exec_id="once")
        results = await asyncio.gather(*(fresh.run(request) for _ in range(10)))
        assert {result.stdout for result in results} == {b"hello\n"}
        assert await ok(fresh, "cat counter") == "run\n"

    async def test_the_first_start_is_told_from_the_next(self, fresh: Sandbox) -> None:
        starts: list[bool] = []

        def on_start(started: Started) -> None:
            starts.append(started.existing)

        request = ExecRequest(command="true", exec_id="told")
        await fresh.run(request, on_start=on_start)
        await fresh.run(request, on_start=on_start)
        await (await fresh.start(request, on_start=on_start)).result()
        assert starts == [False, True, True]
        with pytest.raises(Conflict):
            await fresh.run(ExecRequest(command="false", exec_id="told"), on_start=on_start)
        assert len(starts) == 3

    async def test_output_is_passed_on_as_it_arrives(self, sandbox: Sandbox) -> None:
        pieces: list[Output] = []
        result = await sandbox.run(ExecRequest(command="echo out; echo err >&2"), on_output=pieces.append)
        for channel, expected in ((Channel.STDOUT, result.stdout), (Channel.STDERR, result.stderr)):
            assert b"".join(piece.data for piece in pieces if piece.channel is channel) == expected
        assert [piece.offset for piece in pieces] == sorted(piece.offset for piece in pieces)

    async def test_a_reader_beyond_all_output_gets_the_end_alone(self, fresh: Sandbox) -> None:
        """And it holds nobody up: a command without an output limit waits for its slowest reader."""
        request = ExecRequest(
            command="head -c 8000000 /dev/zero; exit 5", output_limit=None, exec_id="flood", timeout_s=60
        )
        starting = await fresh.start(request)
        watching = await fresh.attach("flood", offset=2**62)
        await starting.detach()
        events = [event async for event in watching.events()]
        assert [type(event) for event in events] == [Started, Exited]
        assert isinstance(events[1], Exited)
        assert (events[1].code, events[1].output_bytes) == (5, 8_000_000)

    async def test_same_exec_id_with_another_command_is_a_conflict(self, sandbox: Sandbox) -> None:
        exec_id = new_exec_id()
        await sandbox.run(ExecRequest(command="true", exec_id=exec_id))
        with pytest.raises(Conflict):
            await sandbox.run(ExecRequest(command="false", exec_id=exec_id))

    async def test_unknown_exec(self, sandbox: Sandbox) -> None:
        with pytest.raises(NotFound):
            await (await sandbox.attach("unknown")).result()
        with pytest.raises(NotFound):
            await sandbox.kill("unknown")

    async def test_list_and_forget(self, fresh: Sandbox) -> None:
        await fresh.run(ExecRequest(command="true", exec_id="done"))
        execution = await fresh.start(ExecRequest(command="sleep 30", exec_id="running"))
        assert {(e.exec_id, e.running) for e in await fresh.list_execs()} == {
            ("done", False),
            ("running", True),
        }
        with pytest.raises(Conflict):
            await fresh.forget("running")
        await fresh.forget("done")
        with pytest.raises(NotFound):
            await (await fresh.attach("done")).result()
        assert await fresh.kill("running") >= 1
        result = await execution.result()
        assert result.verdict is Verdict.KILLED

    async def test_signal_reaches_the_whole_exec(self, sandbox: Sandbox) -> None:
        # Each process reports that its trap is set. The signal would end one that has none.
        child = 'trap "echo child; exit" USR1; echo trapped; while :; do sleep 0.05; done'
        parent = f"trap 'echo bye; exit 5' USR1; echo trapped; sh -c '{child}' & while :; do sleep 0.05; done"
        execution = await sandbox.start(ExecRequest(command=parent))
        received, events = b"", execution.events()
        while received.count(b"trapped\n") < 2:
            event = await asyncio.wait_for(anext(events), 30)
            received += event.data if isinstance(event, Output) else b""
        assert await sandbox.signal(execution.exec_id, 10) >= 2
        again = await sandbox.attach(execution.exec_id)
        result = await asyncio.wait_for(again.result(), 30)
        assert result.exit_code == 5
        assert b"bye" in result.stdout

    async def test_detaching_does_not_end_the_exec(self, sandbox: Sandbox) -> None:
        execution = await sandbox.start(ExecRequest(command="sleep 0.5; echo end"))
        assert isinstance(await anext(execution.events()), Started)
        await execution.detach()
        assert (await (await sandbox.attach(execution.exec_id)).result()).stdout == b"end\n"

    @pytest.mark.parametrize("size", [10, 60_000, 1_000_000])
    async def test_asking_twice_gives_the_input_once(self, sandbox: Sandbox, size: int) -> None:
        request = ExecRequest(command="sleep 0.5; wc -c", stdin=True, timeout_s=30)
        both = await asyncio.gather(*(sandbox.run(request, b"x" * size) for _ in range(2)))
        assert [result.stdout.split() for result in both] == [[str(size).encode()]] * 2

    async def test_terminal(self, sandbox: Sandbox) -> None:
        request = ExecRequest(
            command="test -t 0 && test -t 1 && stty size; read x; stty size; echo got $x",
            stdin=True,
            pty=PtySize(rows=30, cols=100),
        )
        execution = await sandbox.start(request)
        events = execution.events()
        received = b""
        while b"30 100" not in received:
            event = await asyncio.wait_for(anext(events), 30)
            received += event.data if isinstance(event, Output) else b""
        await sandbox.resize(execution.exec_id, rows=40, cols=120)
        await execution.write_stdin(b"word\n")
        async for event in events:
            received += event.data if isinstance(event, Output) else b""
        assert b"40 120" in received
        assert b"got word" in received

    async def test_terminal_is_not_hung_up_on_a_command_that_ends(self, sandbox: Sandbox) -> None:
        for _ in range(20):
            execution = await sandbox.start(ExecRequest(argv=("cat",), stdin=True, pty=PtySize()))
            await execution.write_stdin(b"hi\n\x04")
            assert (await asyncio.wait_for(execution.result(), 30)).exit_code == 0

    async def test_usage_is_told(self, sandbox: Sandbox) -> None:
        counting = "i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done"
        result = await run(sandbox, f"{counting}; dd if=/dev/zero of=/dev/null bs=30M count=1 2>/dev/null")
        assert result.exited.duration_ms > 20
        assert result.exited.user_ms > 10
        assert result.exited.peak_memory_bytes > 30 * MIB

    async def test_two_hundred_at_once(self, sandbox: Sandbox) -> None:
        results = await asyncio.gather(*(run(sandbox, f"echo {i}", timeout_s=60) for i in range(200)))
        assert [result.stdout for result in results] == [f"{i}\n".encode() for i in range(200)]

    async def test_exec_cap(self, fresh: Sandbox) -> None:
        await fresh.bind(env={}, max_execs=2)
        running = [await fresh.start(ExecRequest(command="sleep 60")) for _ in range(2)]
        with pytest.raises(Busy):
            await run(fresh, "true")
        for execution in running:
            await fresh.kill(execution.exec_id)
            await execution.result()
        await ok(fresh, "true")

    async def test_zombies_are_reaped(self, sandbox: Sandbox) -> None:
        await ok(sandbox, "for i in $(seq 100); do (sh -c 'sleep 0.01 &' &) ; done; sleep 1", timeout_s=60)

        async def none_left() -> bool:
            return await ok(sandbox, "grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l") == "0\n"

        await eventually(none_left, 20, "zombies")

    async def test_long_command(self, sandbox: Sandbox) -> None:
        text = "x" * 79 + "\n"
        command = "cat <<'END' | wc -c\n" + text * 25_000 + "END\n"
        assert await ok(sandbox, command, timeout_s=60) == f"{80 * 25_000}\n"

    async def test_huge_request_is_refused(self, sandbox: Sandbox) -> None:
        with pytest.raises(InvalidRequest):
            await run(sandbox, "x" * 4_000_000)
        result = await sandbox.run(ExecRequest(argv=("echo", "x" * 200_000)))
        assert (result.exit_code, result.exited.reason) == (126, "start_failed")

    async def test_user_and_descriptors(self, sandbox: Sandbox) -> None:
        user, group, name = (await ok(sandbox, "id -u; id -g; id -un")).split()
        assert (user == group, user != "0", name) == (True, True, "sandboxuser")
        assert (
            await ok(sandbox, "grep Cap /proc/self/status | sort -u | grep -v '0000000000000000$' | wc -l")
        ) == "0\n"
        # The fourth descriptor is the folder that ls has open.
        assert (await ok(sandbox, "ls /proc/self/fd")).split() == ["0", "1", "2", "3"]
