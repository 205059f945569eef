"""The core of the SDK on gVisor. ``gvisor_calls.py URL KEY``; it needs a server with the template ``gvisor``."""

from __future__ import annotations

import os
import sys
import time

URL, KEY = sys.argv[1:3]
os.environ.update(E2B_API_KEY=KEY, E2B_API_URL=URL, E2B_SANDBOX_URL=URL)

from checking import raises, run  # noqa: E402

import e2b  # noqa: E402
from e2b import Sandbox  # noqa: E402


class Made:
    sandbox: Sandbox


def check_create() -> None:
    Made.sandbox = Sandbox.create("gvisor", timeout=200, envs={"A": "1"})
    assert Made.sandbox.get_info().template_id == "gvisor"
    assert "gVisor" in Made.sandbox.commands.run("dmesg").stdout


def check_commands() -> None:
    result = Made.sandbox.commands.run("echo $A; echo err >&2; pwd")
    assert (result.stdout, result.stderr) == ("1\n/workspace\n", "err\n")
    assert raises(e2b.CommandExitException, lambda: Made.sandbox.commands.run("exit 3")).exit_code == 3
    raises(e2b.TimeoutException, lambda: Made.sandbox.commands.run("sleep 30", timeout=1))
    assert Made.sandbox.commands.run("head -c 3000000 /dev/zero | tr '\\0' x").stdout == "x" * 3_000_000


def check_stdin_and_kill() -> None:
    handle = Made.sandbox.commands.run("cat", background=True, stdin=True)
    Made.sandbox.commands.send_stdin(handle.pid, "typed\n")
    handle.close_stdin()
    assert handle.wait().stdout == "typed\n"
    handle = Made.sandbox.commands.run("sleep 60", background=True)
    assert handle.kill() is True
    assert raises(e2b.CommandExitException, handle.wait).exit_code == -1


def check_disconnect_and_connect() -> None:
    handle = Made.sandbox.commands.run("sleep 1; echo late", background=True)
    handle.disconnect()
    assert Made.sandbox.commands.connect(handle.pid).wait().stdout == "late\n"


def check_pty() -> None:
    output = []
    handle = Made.sandbox.pty.create(e2b.PtySize(rows=20, cols=70))
    Made.sandbox.pty.resize(handle.pid, e2b.PtySize(rows=33, cols=99))
    Made.sandbox.pty.send_stdin(handle.pid, b"stty size; exit 0\n")
    assert handle.wait(on_pty=output.append).exit_code == 0
    assert b"33 99" in b"".join(output)


def check_files() -> None:
    files = Made.sandbox.files
    files.write_files([{"path": f"dir/{number}", "data": str(number)} for number in range(5)])
    assert sorted(each.name for each in files.list("dir")) == list("01234")
    assert files.rename("dir/0", "dir/zero").path == "/workspace/dir/zero"
    assert files.get_info("dir/zero").size == 1
    files.remove("dir/zero")
    assert not files.exists("dir/zero")
    data = bytes(range(256)) * 8000
    files.write("large.bin", data)
    assert files.read("large.bin", format="bytes") == data
    raises(e2b.NotFoundException, lambda: files.read("missing"))


def check_watch_dir() -> None:
    Made.sandbox.files.make_dir("watched")
    handle = Made.sandbox.files.watch_dir("watched")
    Made.sandbox.files.write("watched/new.txt", "1")
    deadline, seen = time.monotonic() + 20, set()
    while ("new.txt", "create") not in seen:
        assert time.monotonic() < deadline, seen
        seen |= {(each.name, each.type.value) for each in handle.get_new_events()}
        time.sleep(0.1)
    handle.stop()


def check_pause_snapshot_and_fork() -> None:
    Made.sandbox.files.write("kept.txt", "file")
    snapshot = Made.sandbox.create_snapshot().snapshot_id
    with Sandbox.create(snapshot) as again:
        assert again.get_info().template_id == "gvisor"
        assert again.files.read("kept.txt") == "file"
    assert Sandbox.delete_snapshot(snapshot)
    (fork,) = Made.sandbox.fork()
    assert fork.files.read("kept.txt") == "file"
    fork.kill()
    assert Made.sandbox.pause() is True
    assert Sandbox.connect(Made.sandbox.sandbox_id).files.read("kept.txt") == "file"


def check_the_end() -> None:
    assert Made.sandbox.kill()


run(globals())
