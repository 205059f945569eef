"""The asynchronous Python SDK. ``async_calls.py URL KEY``; it needs a server with the template ``base``."""

from __future__ import annotations

import asyncio
import os
import sys
import urllib.request
from datetime import UTC, datetime, timedelta

URL, KEY = sys.argv[1:3]
os.environ.update(E2B_API_KEY=KEY, E2B_API_URL=URL, E2B_SANDBOX_URL=URL)

from checking import raises_soon, run, soon  # noqa: E402

import e2b  # noqa: E402
from e2b import AsyncSandbox  # noqa: E402

NEW = hasattr(e2b, "E2B")  # the newest version, which has more to call


class Made:
    sandbox: AsyncSandbox


# --- sandboxes --------------------------------------------------------------------------------


async def check_create() -> None:
    Made.sandbox = await AsyncSandbox.create("base", timeout=200, metadata={"who": "async"}, envs={"A": "1"})
    assert await Made.sandbox.is_running()
    info = await Made.sandbox.get_info()
    assert (info.template_id, info.metadata, info.state) == ("base", {"who": "async"}, "running")


async def check_connect_and_timeout() -> None:
    again = await AsyncSandbox.connect(Made.sandbox.sandbox_id)
    await again.files.write("connected.txt", "yes")
    assert await Made.sandbox.files.read("connected.txt") == "yes"
    await Made.sandbox.set_timeout(400)
    info = await AsyncSandbox.get_info(Made.sandbox.sandbox_id)
    assert (info.end_at - info.started_at).total_seconds() > 350
    await raises_soon(e2b.NotFoundException, AsyncSandbox.connect("f" * 32))
    await raises_soon(e2b.NotFoundException, AsyncSandbox.set_timeout("0" * 32, 10))


async def check_list() -> None:
    others = await asyncio.gather(*(AsyncSandbox.create(metadata={"crowd": "async"}) for _ in range(3)))
    pages = AsyncSandbox.list(query=e2b.SandboxQuery(metadata={"crowd": "async"}), limit=2)
    found = await pages.next_items()
    assert (len(found), pages.has_next) == (2, True)
    found += await pages.next_items()
    assert {each.sandbox_id for each in found} == {each.sandbox_id for each in others}
    assert all(await asyncio.gather(*(each.kill() for each in others)))


async def check_kill() -> None:
    async with await AsyncSandbox.create() as sandbox:
        assert await sandbox.is_running()
    assert not await sandbox.is_running()
    assert await sandbox.kill() is False
    await raises_soon(e2b.TimeoutException, sandbox.commands.run("true"))
    await raises_soon((e2b.TimeoutException, e2b.NotFoundException), sandbox.files.read("a"))


async def check_pause_and_resume() -> None:
    sandbox = await AsyncSandbox.create(envs={"KEPT": "variable"})
    await sandbox.files.write("kept.txt", "file")
    await (sandbox.pause() if hasattr(sandbox, "pause") else sandbox.beta_pause())
    assert (await sandbox.get_info()).state == "paused"
    again = await AsyncSandbox.connect(sandbox.sandbox_id)
    assert await again.files.read("kept.txt") == "file"
    assert (await again.commands.run("echo $KEPT")).stdout == "variable\n"
    assert await again.kill()


async def check_beta_pause() -> None:
    async with await AsyncSandbox.create() as sandbox:
        await sandbox.beta_pause()
        assert (await sandbox.get_info()).state == "paused"


def check_get_host() -> None:
    """Programs behind hosts: ``outside_calls.py``."""
    assert Made.sandbox.get_host(8000).startswith(f"8000-{Made.sandbox.sandbox_id}.")


async def check_metrics() -> None:
    command = await Made.sandbox.commands.run("while true; do :; done", background=True)
    (now,) = await Made.sandbox.get_metrics()
    await command.kill()
    info = await Made.sandbox.get_info()
    assert (now.cpu_count, now.mem_total) == (info.cpu_count, info.memory_mb * 1024 * 1024)
    assert now.cpu_used_pct > 20, now
    assert 0 < now.mem_used < now.mem_total
    an_hour = timedelta(hours=1)
    assert await Made.sandbox.get_metrics(end=datetime.now(UTC) - an_hour) == []
    assert len(await Made.sandbox.get_metrics(start=datetime.now(UTC) - an_hour)) == 1


async def check_snapshot_and_fork() -> None:
    await Made.sandbox.files.write("state.txt", "first")
    snapshot = await Made.sandbox.create_snapshot()
    assert [each.snapshot_id for each in await Made.sandbox.list_snapshots().next_items()] == [
        snapshot.snapshot_id
    ]
    async with await AsyncSandbox.create(snapshot.snapshot_id) as sandbox:
        assert await sandbox.files.read("state.txt") == "first"
    assert await AsyncSandbox.delete_snapshot(snapshot.snapshot_id) is True
    assert await AsyncSandbox.delete_snapshot(snapshot.snapshot_id) is False
    if NEW:
        first, second = await Made.sandbox.fork(count=2)
        assert await first.files.read("state.txt") == await second.files.read("state.txt") == "first"
        await asyncio.gather(first.kill(), second.kill())


# --- commands ---------------------------------------------------------------------------------


async def check_run() -> None:
    result = await Made.sandbox.commands.run("echo $A $B; echo err >&2; pwd", envs={"B": "2"}, cwd="/tmp")
    assert (result.stdout, result.stderr, result.exit_code) == ("1 2\n/tmp\n", "err\n", 0)
    error = await raises_soon(e2b.CommandExitException, Made.sandbox.commands.run("echo so; exit 3"))
    assert (error.exit_code, error.stdout) == (3, "so\n")
    await raises_soon(e2b.InvalidArgumentException, Made.sandbox.commands.run("pwd", cwd="/not/there"))
    await raises_soon(e2b.TimeoutException, Made.sandbox.commands.run("sleep 30", timeout=0.5))


async def check_callbacks() -> None:
    out, err = [], []

    async def on_stderr(text: str) -> None:
        err.append(text)

    await Made.sandbox.commands.run(
        "for i in 1 2 3; do echo $i; echo e$i >&2; sleep 0.05; done",
        on_stdout=out.append,
        on_stderr=on_stderr,
    )
    assert ("".join(out), "".join(err)) == ("1\n2\n3\n", "e1\ne2\ne3\n")


async def check_many_at_once() -> None:
    results = await asyncio.gather(*(Made.sandbox.commands.run(f"echo {number}") for number in range(30)))
    assert [result.stdout for result in results] == [f"{number}\n" for number in range(30)]


async def check_background() -> None:
    handle = await Made.sandbox.commands.run("cat; exit 4", background=True, stdin=True)
    assert handle.pid in [each.pid for each in await Made.sandbox.commands.list()]
    await Made.sandbox.commands.send_stdin(handle.pid, "typed\n")
    if NEW:
        await Made.sandbox.commands.close_stdin(handle.pid)
        error = await raises_soon(e2b.CommandExitException, handle.wait())
        assert (error.exit_code, error.stdout) == (4, "typed\n")
    else:
        assert await handle.kill()
        await raises_soon(e2b.CommandExitException, handle.wait())
    assert await Made.sandbox.commands.kill(handle.pid) is False
    await raises_soon(e2b.NotFoundException, Made.sandbox.commands.send_stdin(99_999_999, "x"))


async def check_a_disconnect_ends_no_process() -> None:
    handle = await Made.sandbox.commands.run("sleep 1; echo late >late.txt; echo late", background=True)
    await handle.disconnect()
    again = await Made.sandbox.commands.connect(handle.pid)
    assert (await again.wait()).stdout == "late\n"
    assert await Made.sandbox.files.read("late.txt") == "late\n"


async def check_a_cancelled_call_ends_no_process() -> None:
    task = asyncio.create_task(Made.sandbox.commands.run("sleep 1; echo done >cancelled.txt"))
    await asyncio.sleep(0.4)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    (known,) = [each for each in await Made.sandbox.commands.list() if "cancelled" in str(each.args)]
    await (await Made.sandbox.commands.connect(known.pid)).wait()
    assert await Made.sandbox.files.read("cancelled.txt") == "done\n"


async def check_the_handle() -> None:
    handle = await Made.sandbox.commands.run("cat; sleep 60", background=True, stdin=True)
    if NEW:
        await handle.send_stdin("typed\n")
        await handle.close_stdin()
    assert await handle.kill() is True
    error = await raises_soon(e2b.CommandExitException, handle.wait())
    assert (error.exit_code, error.error) == (-1, "signal: killed")


async def check_pty() -> None:
    output = bytearray()
    handle = await Made.sandbox.pty.create(e2b.PtySize(rows=20, cols=70), on_data=output.extend, cwd="/tmp")
    await Made.sandbox.pty.resize(handle.pid, e2b.PtySize(rows=33, cols=99))
    await Made.sandbox.pty.send_stdin(handle.pid, b"stty size; pwd; exit 0\n")
    assert (await handle.wait()).exit_code == 0
    assert b"33 99" in output
    assert b"/tmp" in output
    assert await Made.sandbox.pty.kill(handle.pid) is False


async def check_pty_connect_and_kill() -> None:
    handle = await Made.sandbox.pty.create(e2b.PtySize(rows=20, cols=70), on_data=lambda _: None)
    await handle.disconnect()
    output = bytearray()
    again = await Made.sandbox.pty.connect(handle.pid, on_data=output.extend)
    await Made.sandbox.pty.send_stdin(again.pid, b"echo re''connected\n")
    await soon(lambda: b"reconnected" in output)
    assert await Made.sandbox.pty.kill(handle.pid) is True


# --- files ------------------------------------------------------------------------------------


async def check_files() -> None:
    files = Made.sandbox.files
    assert (await files.write("dir/text.txt", "naïve")).path == "/workspace/dir/text.txt"
    assert await files.read("dir/text.txt") == "naïve"
    assert await files.read("dir/text.txt", format="bytes") == "naïve".encode()
    stream = await files.read("dir/text.txt", format="stream")
    assert b"".join([part async for part in stream]) == "naïve".encode()
    written = await files.write_files([{"path": f"dir/{number}", "data": str(number)} for number in range(5)])
    assert len(written) == 5
    assert {each.name for each in await files.list("dir")} == {"text.txt", *"01234"}
    assert await files.exists("dir/0")
    assert (await files.get_info("dir/0")).size == 1
    assert (await files.rename("dir/0", "dir/zero")).path == "/workspace/dir/zero"
    await files.remove("dir/zero")
    assert not await files.exists("dir/zero")
    assert await files.make_dir("dir/deep") is True
    assert await files.make_dir("dir/deep") is False
    await raises_soon(e2b.NotFoundException, files.read("not-there.txt"))
    await raises_soon(e2b.NotFoundException, files.list("nowhere"))


async def check_watch_dir() -> None:
    seen, ended = [], []
    await Made.sandbox.files.make_dir("watched")
    handle = await Made.sandbox.files.watch_dir("watched", seen.append, on_exit=ended.append, recursive=True)
    await Made.sandbox.files.write("watched/new.txt", "1")
    await soon(lambda: ("new.txt", "create") in [(each.name, each.type.value) for each in seen])
    await handle.stop()
    await raises_soon(e2b.NotFoundException, Made.sandbox.files.watch_dir("not-watched", seen.append))


async def check_links() -> None:
    await Made.sandbox.files.write("linked.txt", "by a link")
    url = Made.sandbox.download_url("linked.txt", use_signature_expiration=60)
    assert await asyncio.to_thread(fetch, url) == b"by a link"
    upload = Made.sandbox.upload_url("uploaded.txt", use_signature_expiration=60)
    request = urllib.request.Request(upload, b"up", {"Content-Type": "application/octet-stream"})
    assert b"/workspace/uploaded.txt" in await asyncio.to_thread(fetch, request)
    assert await Made.sandbox.files.read("uploaded.txt") == "up"


def fetch(what: str | urllib.request.Request) -> bytes:
    with urllib.request.urlopen(what) as answer:
        return answer.read()


# --- what only the newest version has ---------------------------------------------------------

if NEW:

    async def check_stream_input() -> None:
        output = []
        command = "cat; echo ended"
        handle = await Made.sandbox.commands.run(
            command, background=True, stdin=True, on_stdout=output.append
        )
        typed = Made.sandbox.commands.stream_input(handle.pid)
        for number in range(100):
            await typed.send(f"{number}\n")
        await soon(lambda: "99\n" in "".join(output))  # it arrives while the stream is open
        await typed.close()
        await Made.sandbox.commands.close_stdin(handle.pid)
        expected = "".join(f"{number}\n" for number in range(100)) + "ended\n"
        assert (await handle.wait()).stdout == expected
        await raises_soon(e2b.NotFoundException, sent(Made.sandbox.commands.stream_input(99_999_999)))

    async def sent(typed) -> None:
        await typed.send("x")
        await typed.close()

    async def check_stream_input_of_a_pty() -> None:
        output = bytearray()
        handle = await Made.sandbox.pty.create(e2b.PtySize(rows=20, cols=70), on_data=output.extend)
        typed = Made.sandbox.pty.stream_input(handle.pid)
        await typed.send(b"echo str''eamed\n")
        await soon(lambda: b"streamed" in output)
        await typed.send(b"exit\n")
        await typed.close()
        assert (await handle.wait()).exit_code == 0

    async def check_network() -> None:
        """What it decides: ``outside_calls.py``."""
        async with await AsyncSandbox.create(allow_internet_access=False) as sandbox:
            await sandbox.update_network({"allow_out": ["example.com"], "deny_out": [e2b.ALL_TRAFFIC]})
            assert (await sandbox.get_info()).network["allow_out"] == ["example.com"]


async def check_the_end() -> None:
    assert await Made.sandbox.kill()


run(globals())
