"""The synchronous Python SDK: sandboxes. ``sandbox_calls.py URL KEY``; it needs a server with the template ``base``."""

from __future__ import annotations

import datetime
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


def check_beta_pause() -> None:
    with Sandbox.create() as sandbox:
        sandbox.beta_pause()
        assert sandbox.get_info().state == "paused"


def check_get_host() -> None:
    """Programs behind hosts: ``outside_calls.py``."""
    assert Made.sandbox.get_host(8000).startswith(f"8000-{Made.sandbox.sandbox_id}.")


def check_metrics() -> None:
    command = Made.sandbox.commands.run("while true; do :; done", background=True)
    (now,) = Made.sandbox.get_metrics()
    command.kill()
    info = Made.sandbox.get_info()
    assert (now.cpu_count, now.mem_total) == (info.cpu_count, info.memory_mb * 1024 * 1024)
    assert now.cpu_used_pct > 20, now
    assert 0 < now.mem_used < now.mem_total
    an_hour_ago = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)
    assert Made.sandbox.get_metrics(end=an_hour_ago) == []
    assert len(Sandbox.get_metrics(Made.sandbox.sandbox_id, start=an_hour_ago)) == 1


def check_snapshot_and_fork() -> None:
    """More of them: ``workspace_calls.py``."""
    Made.sandbox.files.write("state.txt", "first")
    snapshot = Made.sandbox.create_snapshot().snapshot_id
    assert [each.snapshot_id for each in Made.sandbox.list_snapshots().next_items()] == [snapshot]
    with Sandbox.create(snapshot) as sandbox:
        assert sandbox.files.read("state.txt") == "first"
    assert Sandbox.delete_snapshot(snapshot) is True
    assert Sandbox.delete_snapshot(snapshot) is False
    if NEW:
        first, second = Made.sandbox.fork(count=2)
        assert first.files.read("state.txt") == second.files.read("state.txt") == "first"
        assert first.kill()
        assert second.kill()


def check_wrong_key() -> None:
    raises(e2b.AuthenticationException, lambda: Sandbox.create(api_key="e2b_" + "00" * 20))


def check_with() -> None:
    with Sandbox.create() as sandbox:
        assert sandbox.is_running()
    assert not sandbox.is_running()


if NEW:

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

    def check_a_client_with_its_own_configuration() -> None:
        client = e2b.E2B(api_key=KEY, api_url=URL, sandbox_url=URL)
        with client.Sandbox.create() as sandbox:
            assert sandbox.commands.run("echo bound").stdout == "bound\n"
        raises(e2b.AuthenticationException, e2b.E2B(api_key="e2b_" + "00" * 20).Sandbox.create)

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
