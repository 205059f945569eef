"""The synchronous Python SDK. ``sync_calls.py URL KEY``; it needs a server with the template ``base``."""

from __future__ import annotations

import datetime
import os
import sys
import time
import urllib.error
import urllib.request

URL, KEY = sys.argv[1:3]
os.environ.update(E2B_API_KEY=KEY, E2B_API_URL=URL, E2B_SANDBOX_URL=URL)

from checking import raises, run  # noqa: E402

import e2b  # noqa: E402
from e2b import Sandbox  # noqa: E402

NEW = hasattr(e2b, "E2B")  # the newest version, which has more to call


class Made:
    """One sandbox for most checks, because they do not disturb each other."""

    sandbox: Sandbox


def eventually(check, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not (found := check()):
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.05)
    return found


# --- sandboxes --------------------------------------------------------------------------------


def check_create() -> None:
    Made.sandbox = Sandbox.create(
        "base", timeout=200, metadata={"who": "sync", "a b": "c&d=é"}, envs={"GREETING": "hello"}
    )
    assert Made.sandbox.sandbox_id.isalnum()
    assert Made.sandbox.is_running()


def check_info() -> None:
    info = Made.sandbox.get_info()
    assert info.sandbox_id == Made.sandbox.sandbox_id
    assert info.template_id == "base"
    assert info.metadata == {"who": "sync", "a b": "c&d=é"}
    assert info.state == "running"
    assert 190 < (info.end_at - info.started_at).total_seconds() < 210
    assert info.cpu_count >= 1
    assert info.memory_mb > 0
    assert info.lifecycle == {"on_timeout": "kill", "auto_resume": False}
    assert Sandbox.get_info(Made.sandbox.sandbox_id).sandbox_id == info.sandbox_id


def check_info_of_none() -> None:
    for sandbox_id in ("0" * 32, "nothing", "ses"):
        raises(e2b.NotFoundException, lambda sandbox_id=sandbox_id: Sandbox.get_info(sandbox_id))


def check_unknown_template() -> None:
    error = raises(e2b.SandboxException, lambda: Sandbox.create("bsae"))
    assert "'base'" in str(error), error


def check_connect() -> None:
    again = Sandbox.connect(Made.sandbox.sandbox_id)
    again.files.write("connected.txt", "yes")
    assert Made.sandbox.files.read("connected.txt") == "yes"
    assert Made.sandbox.connect(timeout=400).sandbox_id == Made.sandbox.sandbox_id
    info = Made.sandbox.get_info()
    left = info.end_at - datetime.datetime.now(datetime.UTC)
    assert 350 < left.total_seconds() < 410, left
    Sandbox.connect(Made.sandbox.sandbox_id, timeout=10)
    assert Made.sandbox.get_info().end_at == info.end_at, "connecting never shortens a life"


def check_connect_to_none() -> None:
    raises(e2b.NotFoundException, lambda: Sandbox.connect("f" * 32))


def check_set_timeout() -> None:
    Made.sandbox.set_timeout(300)
    left = Made.sandbox.get_info().end_at - datetime.datetime.now(datetime.UTC)
    assert 280 < left.total_seconds() < 310, left
    Sandbox.set_timeout(Made.sandbox.sandbox_id, 600)
    left = Made.sandbox.get_info().end_at - datetime.datetime.now(datetime.UTC)
    assert 580 < left.total_seconds() < 610, left
    raises(e2b.NotFoundException, lambda: Sandbox.set_timeout("0" * 32, 10))


def check_timeout_ends_it() -> None:
    sandbox = Sandbox.create(timeout=1)
    eventually(lambda: not sandbox.is_running())
    raises(e2b.TimeoutException, lambda: sandbox.commands.run("echo too late"))


def check_list() -> None:
    others = [Sandbox.create(metadata={"crowd": "listed"}) for _ in range(3)]
    pages = Sandbox.list(query=e2b.SandboxQuery(metadata={"crowd": "listed"}), limit=2)
    found = pages.next_items()
    assert len(found) == 2
    assert pages.has_next
    found += pages.next_items()
    assert not pages.has_next
    assert [each.sandbox_id for each in found] == [each.sandbox_id for each in reversed(others)], (
        "newest first"
    )
    exact = Sandbox.list(query=e2b.SandboxQuery(metadata={"a b": "c&d=é"})).next_items()
    assert [each.sandbox_id for each in exact] == [Made.sandbox.sandbox_id]
    paused = Sandbox.list(query=e2b.SandboxQuery(state=[e2b.SandboxState.PAUSED])).next_items()
    assert {each.sandbox_id for each in paused}.isdisjoint(each.sandbox_id for each in others)
    for each in others:
        assert each.kill()


def check_envs_and_lifecycle() -> None:
    assert Made.sandbox.commands.run("echo $GREETING").stdout == "hello\n"
    result = Made.sandbox.commands.run("echo $GREETING $MORE", envs={"GREETING": "bye", "MORE": "now"})
    assert result.stdout == "bye now\n"


def check_kill() -> None:
    sandbox = Sandbox.create()
    assert sandbox.kill() is True
    assert sandbox.kill() is False
    assert not sandbox.is_running()
    assert Sandbox.kill(sandbox.sandbox_id) is False
    raises(e2b.TimeoutException, lambda: sandbox.commands.run("true"))
    raises((e2b.TimeoutException, e2b.NotFoundException), lambda: sandbox.files.list("."))
    raises((e2b.TimeoutException, e2b.NotFoundException), lambda: sandbox.files.read("a"))


def check_pause_and_resume() -> None:
    sandbox = Sandbox.create(envs={"KEPT": "variable"})
    sandbox.files.write("kept.txt", "file")
    pause = sandbox.pause if hasattr(sandbox, "pause") else sandbox.beta_pause
    pause()
    assert not sandbox.is_running()
    error = raises(e2b.TimeoutException, lambda: sandbox.commands.run("true"))
    assert "paused" in str(error)
    assert Sandbox.get_info(sandbox.sandbox_id).state == "paused"
    again = Sandbox.connect(sandbox.sandbox_id, timeout=120)
    assert again.files.read("kept.txt") == "file"
    assert again.commands.run("echo $KEPT").stdout == "variable\n"
    assert sandbox.is_running()
    assert Sandbox.kill(sandbox.sandbox_id)


def check_get_host() -> None:
    assert Made.sandbox.get_host(8000).startswith(f"8000-{Made.sandbox.sandbox_id}.")


def check_wrong_key() -> None:
    raises(e2b.AuthenticationException, lambda: Sandbox.create(api_key="e2b_" + "00" * 20))


def check_with() -> None:
    with Sandbox.create() as sandbox:
        assert sandbox.is_running()
    assert not sandbox.is_running()


# --- commands ---------------------------------------------------------------------------------


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
    assert Made.sandbox.pty.kill(handle.pid) is False


# --- files ------------------------------------------------------------------------------------


def check_write_and_read() -> None:
    info = Made.sandbox.files.write("dir/text.txt", "naïve")
    assert (info.name, info.path) == ("text.txt", "/workspace/dir/text.txt")
    assert Made.sandbox.files.read("dir/text.txt") == "naïve"
    assert Made.sandbox.files.read("/workspace/dir/text.txt", format="bytes") == "naïve".encode()
    assert b"".join(Made.sandbox.files.read("dir/text.txt", format="stream")) == "naïve".encode()
    Made.sandbox.files.write("dir/text.txt", b"")
    assert Made.sandbox.files.read("dir/text.txt") == ""


def check_write_large() -> None:
    data = bytes(range(256)) * 40_000
    Made.sandbox.files.write("large.bin", data)
    assert Made.sandbox.files.read("large.bin", format="bytes") == data


def check_write_files() -> None:
    names = ["many/1.txt", "many/two words.txt", "many/drei ü.txt", 'many/quo"te.txt']
    written = Made.sandbox.files.write_files([{"path": name, "data": name} for name in names])
    assert [each.path for each in written] == [f"/workspace/{name}" for name in names]
    assert [Made.sandbox.files.read(name) for name in names] == names
    assert Made.sandbox.files.write_files([]) == []


def check_list_files() -> None:
    Made.sandbox.files.write("tree/a/b.txt", "12345")
    (folder,) = Made.sandbox.files.list("tree")
    assert (folder.name, folder.type.value, folder.path) == ("a", "dir", "/workspace/tree/a")
    found = Made.sandbox.files.list("/workspace/tree", depth=2)
    assert [(each.name, each.size) for each in found if each.type.value == "file"] == [("b.txt", 5)]
    raises(e2b.NotFoundException, lambda: Made.sandbox.files.list("nowhere"))
    raises(e2b.InvalidArgumentException, lambda: Made.sandbox.files.list("tree/a/b.txt"))


def check_exists_and_info() -> None:
    Made.sandbox.files.write("info.txt", "1234")
    assert Made.sandbox.files.exists("info.txt")
    assert not Made.sandbox.files.exists("info.txt.not")
    info = Made.sandbox.files.get_info("info.txt")
    assert (info.size, info.permissions, info.owner, info.mode) == (4, "-rw-r--r--", "sandboxuser", 0o644)
    assert abs(info.modified_time.timestamp() - time.time()) < 600
    Made.sandbox.commands.run("ln -sf info.txt link.txt")
    assert Made.sandbox.files.get_info("link.txt").symlink_target == "info.txt"
    raises(e2b.NotFoundException, lambda: Made.sandbox.files.get_info("info.txt.not"))


def check_make_dir() -> None:
    assert Made.sandbox.files.make_dir("made/deep") is True
    assert Made.sandbox.files.make_dir("made/deep") is False


def check_rename() -> None:
    Made.sandbox.files.write("from.txt", "moved")
    assert Made.sandbox.files.rename("from.txt", "to.txt").path == "/workspace/to.txt"
    assert Made.sandbox.files.read("to.txt") == "moved"
    raises(e2b.NotFoundException, lambda: Made.sandbox.files.rename("from.txt", "again.txt"))


def check_remove() -> None:
    Made.sandbox.files.write("removed/inside.txt", "x")
    Made.sandbox.files.remove("removed")
    assert not Made.sandbox.files.exists("removed")
    Made.sandbox.files.remove("removed")


def check_read_of_none() -> None:
    raises(e2b.NotFoundException, lambda: Made.sandbox.files.read("not-there.txt"))
    raises(e2b.InvalidArgumentException, lambda: Made.sandbox.files.read("/tmp"))
    raises(e2b.SandboxException, lambda: Made.sandbox.files.write("/etc/passwd", "x"))


def check_watch_dir() -> None:
    Made.sandbox.files.make_dir("watched")
    handle = Made.sandbox.files.watch_dir("watched", recursive=True)
    Made.sandbox.files.write("watched/new.txt", "1")
    seen = []

    def found() -> bool:
        seen.extend(handle.get_new_events())
        return {("new.txt", "create"), ("new.txt", "write")} <= {
            (each.name, each.type.value) for each in seen
        }

    eventually(found)
    assert not [each for each in seen if each.name.startswith(".sandlot")], "ours are not shown"
    Made.sandbox.files.remove("watched/new.txt")
    eventually(lambda: "remove" in [each.type.value for each in handle.get_new_events()])
    handle.stop()
    raises(e2b.NotFoundException, lambda: Made.sandbox.files.watch_dir("not-watched"))


def check_links() -> None:
    Made.sandbox.files.write("linked.txt", "by a link")
    url = Made.sandbox.download_url("linked.txt")
    assert urllib.request.urlopen(url).read() == b"by a link"
    assert urllib.request.urlopen(Made.sandbox.download_url("linked.txt", use_signature_expiration=60)).read()
    expired = Made.sandbox.download_url("linked.txt", use_signature_expiration=-1)
    for wrong in (expired, url[:-2] + "AA", url.replace("linked", "connected")):
        assert raises(urllib.error.HTTPError, lambda wrong=wrong: urllib.request.urlopen(wrong)).code == 401
    upload = Made.sandbox.upload_url("uploaded.txt", use_signature_expiration=60)
    request = urllib.request.Request(upload, b"up", {"Content-Type": "application/octet-stream"})
    assert b"/workspace/uploaded.txt" in urllib.request.urlopen(request).read()
    assert Made.sandbox.files.read("uploaded.txt") == "up"


# --- what only the newest version has ---------------------------------------------------------

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

    def check_octet_stream_and_gzip() -> None:
        Made.sandbox.files.write("octets.bin", b"\0\1" * 1000, use_octet_stream=True)
        assert Made.sandbox.files.read("octets.bin", format="bytes") == b"\0\1" * 1000
        Made.sandbox.files.write("packed.txt", "packed" * 100_000, gzip=True)
        assert Made.sandbox.files.read("packed.txt", gzip=True) == "packed" * 100_000
        Made.sandbox.files.write("piecewise.txt", iter([b"a" * 70_000, b"b"]))
        assert Made.sandbox.files.get_info("piecewise.txt").size == 70_001

    def check_no_file_metadata() -> None:
        raises(e2b.TemplateException, lambda: Made.sandbox.files.write("m.txt", "x", metadata={"a": "b"}))

    def check_lifecycle() -> None:
        sandbox = Sandbox.create(timeout=1, lifecycle={"on_timeout": "pause", "auto_resume": True})
        sandbox.files.write("kept.txt", "still")
        assert sandbox.get_info().lifecycle == {"on_timeout": "pause", "auto_resume": True}
        eventually(lambda: sandbox.get_info().state == "paused")
        assert sandbox.files.read("kept.txt") == "still", "its next use resumes it"
        sandbox.kill()

    def check_pause_keeps_no_memory() -> None:
        error = raises(e2b.SandboxException, lambda: Made.sandbox.pause(mode="full"))
        assert "files" in str(error)
        with Sandbox.create() as sandbox:
            assert sandbox.pause(mode="filesystem") is True
            assert sandbox.pause() is False

    def check_idempotency_key() -> None:
        first = Sandbox.create(idempotency_key="same-key-1")
        assert Sandbox.create(idempotency_key="same-key-1").sandbox_id == first.sandbox_id
        first.kill()

    def check_network() -> None:
        with Sandbox.create(allow_internet_access=False) as sandbox:
            assert sandbox.get_info().allow_internet_access is False
            sandbox.update_network({"allow_out": ["example.com"], "deny_out": [e2b.ALL_TRAFFIC]})
            assert sandbox.get_info().network["allow_out"] == ["example.com"]
            sandbox.update_network({"allow_internet_access": False})
            assert sandbox.get_info().network["allow_out"] == []

    def check_nothing_is_ignored() -> None:
        for wrong in (
            {"network": {"dns_servers": ["1.1.1.1"]}},
            {"network": {"egress_proxy": {"address": "proxy:1080"}}},
            {"network": {"allow_public_traffic": True}},
            {"volume_mounts": {"/data": "a-volume"}},
            {"iam": {"tokens": {"aws": {"audience": "sts", "token_type": "JWT-SVID"}}}},
            {"mcp": {"browserbase": {}}, "template": "base"},
            {"lifecycle": {"on_timeout": {"action": "pause", "mode": "full"}}},
        ):
            raises(e2b.SandboxException, lambda wrong=wrong: Sandbox.create(**wrong))


def check_the_end() -> None:
    assert Made.sandbox.kill()


run(globals())
