"""Snapshots, forks and volumes. ``workspace_calls.py URL KEY STORE``; STORE: ``btrfs`` or ``volume``, for Docker's."""

from __future__ import annotations

import os
import sys

URL, KEY, STORE = sys.argv[1:4]
os.environ.update(E2B_API_KEY=KEY, E2B_API_URL=URL, E2B_SANDBOX_URL=URL)

from checking import raises, raises_soon, run  # noqa: E402

import e2b  # noqa: E402
from e2b import AsyncSandbox, AsyncVolume, Sandbox, Secret, Template, Volume  # noqa: E402


class Made:
    sandbox: Sandbox
    snapshot: str


def check_create_snapshot() -> None:
    Made.sandbox = Sandbox.create(timeout=200, metadata={"who": "parent"})
    Made.sandbox.files.write("state.txt", "first")
    taken = Made.sandbox.create_snapshot(name="first state")
    assert taken.names == ["first state"]
    Made.snapshot = taken.snapshot_id
    Made.sandbox.files.write("state.txt", "second")
    assert Made.sandbox.files.read("state.txt") == "second", "the sandbox goes on"
    assert Sandbox.create_snapshot(Made.sandbox.sandbox_id).names == []


def check_create_from_a_snapshot() -> None:
    for template in (Made.snapshot, Made.snapshot + ":default"):
        with Sandbox.create(template) as sandbox:
            assert sandbox.files.read("state.txt") == "first"
            sandbox.files.write("state.txt", "its own")
    assert Made.sandbox.files.read("state.txt") == "second"


def check_a_snapshot_keeps_its_template() -> None:
    with Sandbox.create("slim") as sandbox:
        snapshot = sandbox.create_snapshot().snapshot_id
    with Sandbox.create(snapshot) as again:
        assert again.get_info().template_id == "slim"
    Sandbox.delete_snapshot(snapshot)


def check_list_snapshots() -> None:
    pages = Sandbox.list_snapshots(Made.sandbox.sandbox_id, limit=1)
    first = pages.next_items()
    assert [each.snapshot_id for each in first] == [Made.snapshot]
    assert pages.has_next
    assert len(pages.next_items()) == 1
    assert not pages.has_next
    assert len(Made.sandbox.list_snapshots().next_items()) == 2
    for name in ("first state", Made.snapshot, Made.snapshot + ":default"):
        assert [each.snapshot_id for each in Sandbox.list_snapshots(name=name).next_items()] == [
            Made.snapshot
        ]
    assert Sandbox.list_snapshots(name="unknown").next_items() == []


def check_a_snapshot_keeps_no_memory() -> None:
    error = raises(e2b.SandboxException, lambda: Made.sandbox.create_snapshot(mode="full"))
    assert "files" in str(error)
    taken = Made.sandbox.create_snapshot(mode="filesystem")
    assert Sandbox.delete_snapshot(taken.snapshot_id) is True


def check_fork() -> None:
    forks = Made.sandbox.fork(count=3, timeout=100)
    assert len({fork.sandbox_id for fork in forks} | {Made.sandbox.sandbox_id}) == 4
    for number, fork in enumerate(forks):
        assert fork.files.read("state.txt") == "second"
        fork.files.write("state.txt", str(number))
        assert fork.get_info().metadata == {"who": "parent"}
    assert [fork.files.read("state.txt") for fork in forks] == ["0", "1", "2"]
    assert Made.sandbox.files.read("state.txt") == "second"
    assert all(fork.kill() for fork in forks)
    assert len(Made.sandbox.list_snapshots().next_items()) == 2, "a fork leaves no snapshot"
    (fork,) = Sandbox.fork(Made.sandbox.sandbox_id)
    assert fork.kill()


def check_fork_of_none() -> None:
    raises(e2b.SandboxNotFoundException, lambda: Sandbox.fork("0" * 32))
    raises(e2b.SandboxNotFoundException, lambda: Sandbox.create_snapshot("0" * 32))


def check_delete_snapshot() -> None:
    for each in Made.sandbox.list_snapshots().next_items():
        assert Sandbox.delete_snapshot(each.snapshot_id) is True
    assert Sandbox.delete_snapshot(Made.snapshot) is False
    error = raises(e2b.SandboxException, lambda: Sandbox.create(Made.snapshot))
    assert Made.snapshot in str(error)
    error = raises(e2b.SandboxException, lambda: Sandbox.delete_snapshot("base"))
    assert "operator" in str(error)


def check_templates() -> None:
    assert Template.exists("base") is True
    assert Template.exists("bsae") is False
    error = raises(e2b.BuildException, lambda: Template.build(Template().from_image("debian:12"), "own"))
    assert "operator" in str(error)


def check_no_secrets() -> None:
    error = raises(e2b.SecretException, lambda: Secret.list().next_items())
    assert "operator" in str(error)


if STORE == "btrfs":

    def check_volumes() -> None:
        volume = Volume.create("e2b-data")
        assert [each.name for each in Volume.list()] == ["e2b-data"]
        assert Volume.get_info(volume.volume_id).name == "e2b-data"
        assert Volume.connect(volume.volume_id).name == "e2b-data"
        raises(e2b.VolumeException, lambda: Volume.create("e2b-data"))
        mounts = {"/volumes/e2b-data": volume}
        with Sandbox.create(volume_mounts=mounts) as sandbox:
            sandbox.commands.run("echo kept >/volumes/e2b-data/a.txt")
            assert sandbox.get_info().volume_mounts == [{"name": "e2b-data", "path": "/volumes/e2b-data"}]
            error = raises(e2b.SandboxException, lambda: Sandbox.create(volume_mounts=mounts))
            assert "only one session" in str(error)
            (fork,) = sandbox.fork()
            assert fork.commands.run("cat /volumes/e2b-data/a.txt").stdout == "kept\n"
            raises(e2b.CommandExitException, lambda: fork.commands.run("touch /volumes/e2b-data/b.txt"))
            fork.kill()
        with Sandbox.create(volume_mounts={"/volumes/e2b-data": "e2b-data"}) as sandbox:
            assert sandbox.commands.run("cat /volumes/e2b-data/a.txt").stdout == "kept\n"
        error = raises(e2b.SandboxException, lambda: Sandbox.create(volume_mounts={"/data": volume}))
        assert "/volumes/e2b-data" in str(error)
        assert Volume.destroy(volume.volume_id) is True
        assert Volume.destroy(volume.volume_id) is False
        raises(e2b.VolumeNotFoundException, lambda: Volume.get_info(volume.volume_id))

    async def check_volumes_by_the_async_sdk() -> None:
        volume = await AsyncVolume.create("e2b-async")
        assert [each.name for each in await AsyncVolume.list()] == ["e2b-async"]
        assert (await AsyncVolume.get_info(volume.volume_id)).name == "e2b-async"
        assert (await AsyncVolume.connect(volume.volume_id)).name == "e2b-async"
        mounts = {"/volumes/e2b-async": volume}
        async with await AsyncSandbox.create(volume_mounts=mounts) as sandbox:
            await sandbox.commands.run("echo kept >/volumes/e2b-async/a.txt")
        async with await AsyncSandbox.create(volume_mounts=mounts) as sandbox:
            assert (await sandbox.commands.run("cat /volumes/e2b-async/a.txt")).stdout == "kept\n"
        assert await AsyncVolume.destroy(volume.volume_id) is True
        await raises_soon(e2b.VolumeNotFoundException, AsyncVolume.get_info(volume.volume_id))

else:

    def check_no_volumes() -> None:
        error = raises(e2b.VolumeException, lambda: Volume.create("e2b-data"))
        assert "btrfs" in str(error)
        mounts = {"/volumes/e2b-data": "e2b-data"}
        raises(e2b.SandboxException, lambda: Sandbox.create(volume_mounts=mounts))


def check_the_end() -> None:
    assert Made.sandbox.kill()


run(globals())
