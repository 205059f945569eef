"""The synchronous Python SDK: commands and terminals. ``command_calls.py URL KEY``; it needs the template ``base``."""

from __future__ import annotations

import os
import sys

URL, KEY = sys.argv[1:3]
os.environ.update(E2B_API_KEY=KEY, E2B_API_URL=URL, E2B_SANDBOX_URL=URL)

from checking import eventually, raises, run  # noqa: E402

import e2b  # noqa: E402
from e2b import Sandbox  # noqa: E402

NEW = hasattr(e2b, "E2B")  # the newest version, which has more to call


class Made:
    """One sandbox for most checks, because they do not disturb each other."""

    sandbox: Sandbox


def check_create() -> None:
    Made.sandbox = Sandbox.create("base", timeout=600)


def check_run() -> None:
    result = Made.sandbox.commands.run("echo out; echo err >&2; pwd")
    assert result.stdout == "out\n/workspace\n"
    assert result.stderr == "err\n"
    assert result.exit_code == 0
    assert result.error is None


def check_run_fails() -> None:
    error = raises(e2b.CommandExitException, lambda: Made.sandbox.commands.run("echo so; exit 3"))
    assert (error.exit_code, error.stdout) == (3, "so\n")


def check_run_callbacks() -> None:
    out, err = [], []
    Made.sandbox.commands.run(
        "for i in 1 2 3; do echo $i; echo e$i >&2; sleep 0.05; done",
        on_stdout=out.append,
        on_stderr=err.append,
    )
    assert ("".join(out), "".join(err)) == ("1\n2\n3\n", "e1\ne2\ne3\n")


def check_run_cwd() -> None:
    assert Made.sandbox.commands.run("pwd", cwd="/tmp").stdout == "/tmp\n"
    raises(e2b.InvalidArgumentException, lambda: Made.sandbox.commands.run("pwd", cwd="/does/not/exist"))


def check_run_timeout() -> None:
    raises(e2b.TimeoutException, lambda: Made.sandbox.commands.run("sleep 30", timeout=0.5))
    eventually(lambda: not [each for each in Made.sandbox.commands.list() if "sleep 30" in str(each.args)])


def check_run_much_output() -> None:
    result = Made.sandbox.commands.run("head -c 5000000 /dev/zero | tr '\\0' x")
    assert result.stdout == "x" * 5_000_000


def check_run_not_utf8() -> None:
    assert Made.sandbox.commands.run("printf 'a\\xff\\xc3'; sleep 0.1; printf '\\xa9'").stdout == "a\ufffdé"


def check_user() -> None:
    error = raises(e2b.SandboxException, lambda: Made.sandbox.commands.run("id", user="root"))
    assert "no root" in str(error)
    assert Made.sandbox.commands.run("id -u", user="user").stdout != "0\n"
    raises(e2b.SandboxException, lambda: Made.sandbox.files.read("connected.txt", user="root"))
    raises(e2b.InvalidArgumentException, lambda: Made.sandbox.commands.run("id", user="nobody-here"))


def check_background() -> None:
    handle = Made.sandbox.commands.run("sleep 0.3; echo done", background=True)
    (known,) = [each for each in Made.sandbox.commands.list() if each.pid == handle.pid]
    assert (known.cmd, known.args) == ("/bin/bash", ["-l", "-c", "sleep 0.3; echo done"])
    assert handle.wait().stdout == "done\n"
    assert handle.pid not in [each.pid for each in Made.sandbox.commands.list()]


def check_iterating() -> None:
    handle = Made.sandbox.commands.run("echo one; echo two >&2", background=True)
    assert sorted("".join(filter(None, parts)) for parts in handle) == ["one\n", "two\n"]


def check_kill_command() -> None:
    handle = Made.sandbox.commands.run("sleep 60", background=True)
    assert handle.kill() is True
    error = raises(e2b.CommandExitException, handle.wait)
    assert (error.exit_code, error.error) == (-1, "signal: killed")
    assert Made.sandbox.commands.kill(handle.pid) is False
    assert Made.sandbox.commands.kill(99_999_999) is False


def check_stdin() -> None:
    handle = Made.sandbox.commands.run("cat", background=True, stdin=True)
    for number in range(20):
        Made.sandbox.commands.send_stdin(handle.pid, f"{number}\n")
    if NEW:
        handle.close_stdin()
    else:
        Made.sandbox.commands.send_stdin(handle.pid, "")
        eventually(lambda: next(iter(handle)))
        Made.sandbox.commands.kill(handle.pid)
        return
    assert handle.wait().stdout == "".join(f"{number}\n" for number in range(20))


def check_stdin_by_the_handle() -> None:
    if NEW:
        handle = Made.sandbox.commands.run("cat", background=True, stdin=True)
        handle.send_stdin("typed\n")
        handle.close_stdin()
        assert handle.wait().stdout == "typed\n"


def check_no_stdin() -> None:
    assert Made.sandbox.commands.run("cat", timeout=10).stdout == "", "without stdin it is empty"
    raises(e2b.NotFoundException, lambda: Made.sandbox.commands.send_stdin(99_999_999, "x"))


def check_disconnect_and_connect() -> None:
    handle = Made.sandbox.commands.run("sleep 1; echo late; exit 7", background=True)
    handle.disconnect()
    again = Made.sandbox.commands.connect(handle.pid)
    assert again.pid == handle.pid
    error = raises(e2b.CommandExitException, again.wait)
    assert (error.exit_code, error.stdout) == (7, "late\n")
    # Later, too: how it ended is kept.
    assert raises(e2b.CommandExitException, Made.sandbox.commands.connect(handle.pid).wait).exit_code == 7
    raises(e2b.NotFoundException, lambda: Made.sandbox.commands.connect(99_999_999))


def check_pty() -> None:
    output = []
    handle = Made.sandbox.pty.create(e2b.PtySize(rows=20, cols=70), envs={"MINE": "yes"}, cwd="/tmp")
    Made.sandbox.pty.resize(handle.pid, e2b.PtySize(rows=33, cols=99))
    Made.sandbox.pty.send_stdin(handle.pid, b"stty size; pwd; echo [$MINE]; exit 0\n")
    assert handle.wait(on_pty=output.append).exit_code == 0
    text = b"".join(output)
    assert b"33 99" in text
    assert b"/tmp" in text
    assert b"[yes]" in text


def check_pty_connect_and_kill() -> None:
    handle = Made.sandbox.pty.create(e2b.PtySize(rows=20, cols=70))
    handle.disconnect()
    again = Made.sandbox.pty.connect(handle.pid)
    Made.sandbox.pty.send_stdin(handle.pid, b"echo re''connected\n")
    eventually(lambda: b"reconnected" in (next(iter(again))[2] or b""))
    assert Made.sandbox.pty.kill(handle.pid) is True
    # A signal says nothing of when the process has ended.
    eventually(lambda: Made.sandbox.pty.kill(handle.pid) is False)


if NEW:

    def check_stream_input() -> None:
        handle = Made.sandbox.commands.run("cat", background=True, stdin=True)
        Made.sandbox.commands.stream_input(handle.pid, (f"{number}\n".encode() for number in range(100)))
        Made.sandbox.commands.close_stdin(handle.pid)
        assert handle.wait().stdout == "".join(f"{number}\n" for number in range(100))
        handle = Made.sandbox.pty.create(e2b.PtySize(rows=20, cols=70))
        Made.sandbox.pty.stream_input(handle.pid, [b"echo str''eamed; ", b"exit\n"])
        output = []
        handle.wait(on_pty=output.append)
        assert b"streamed" in b"".join(output)


def check_the_end() -> None:
    assert Made.sandbox.kill()


run(globals())
