"""A workspace's life: made with a sandbox, kept without it, given to another, deleted."""

from __future__ import annotations

import asyncio

import pytest

from sandlot.domain.errors import Conflict, NotFound
from sandlot.domain.ids import first_workspace_of, new_snapshot_id, new_workspace_id
from sandlot.domain.workspaces.workspace import StoreKind
from sandlot.testing.provider_suite.harness import ok
from sandlot.testing.workspace_suite.harness import (
    MAKE_FILES,
    TAG,
    WorkspaceCases,
    WorkspaceHarness,
    described,
    require_swaps,
)


class LifeCases(WorkspaceCases):
    async def test_a_sandbox_comes_and_goes_with_a_workspace(self, rig: WorkspaceHarness) -> None:
        sandbox = await rig.create()
        workspace_id = first_workspace_of(sandbox.id)
        assert workspace_id in (await rig.store.list()).workspaces
        assert (
            await ok(sandbox, "echo a >a; cat a; stat -c %u . | grep -qx $(id -u) && echo own") == "a\nown\n"
        )
        await rig.provider.destroy(sandbox.id)
        assert workspace_id not in (await rig.store.list()).workspaces

    async def test_kept_files_are_as_they_were(self, rig: WorkspaceHarness) -> None:
        """Modes, links, times, holes and names, for another sandbox."""
        sandbox = await rig.create()
        await ok(sandbox, MAKE_FILES)
        before = await described(sandbox)
        workspace_id = first_workspace_of(sandbox.id)
        await rig.provider.destroy(sandbox.id, keep={workspace_id})
        assert workspace_id in (await rig.store.list()).workspaces
        await rig.provider.destroy(sandbox.id, keep={workspace_id})
        again = await rig.create_with(workspace_id)
        assert await described(again) == before
        await ok(again, "echo more >>one; chmod 700 shut; rm -r shut")
        await rig.provider.destroy(again.id, keep={workspace_id})
        third = await rig.create_with(workspace_id)
        assert await ok(third, "cat one deep/hard") == "one\nmore\n" * 2
        await rig.provider.destroy(third.id, keep={workspace_id})
        await rig.store.delete(workspace_id)

    async def test_a_restarted_worker_finds_what_is_stored(self, rig: WorkspaceHarness) -> None:
        running, gone = await rig.create(), await rig.create()
        await ok(gone, "echo kept >a")
        workspace_id = first_workspace_of(gone.id)
        await rig.provider.destroy(gone.id, keep={workspace_id})
        rig.provider = await rig.reopen()
        await rig.provider.open()
        assert {workspace_id, first_workspace_of(running.id)} <= (await rig.store.list()).workspaces
        adopted = await rig.provider.adopt(running.id)
        await ok(adopted, "echo still >a; cat a")
        assert await ok(await rig.create_with(workspace_id), "cat a") == "kept\n"

    async def test_a_workspace_that_is_gone(self, rig: WorkspaceHarness) -> None:
        with pytest.raises(NotFound):
            await rig.create_with(new_workspace_id())

    async def test_delete_may_be_repeated(self, rig: WorkspaceHarness) -> None:
        sandbox = await rig.create()
        workspace_id = first_workspace_of(sandbox.id)
        with pytest.raises(Conflict):
            await rig.store.delete(workspace_id)
        assert await ok(sandbox, "echo ok") == "ok\n"
        await rig.provider.destroy(sandbox.id, keep={workspace_id})
        await rig.store.delete(workspace_id)
        await rig.store.delete(workspace_id)
        await rig.store.delete(new_snapshot_id(TAG))
        assert workspace_id not in (await rig.store.list()).workspaces

    async def test_a_running_sandbox_gets_other_files(self, rig: WorkspaceHarness) -> None:
        require_swaps(rig)
        first, other = await rig.create(), await rig.create()
        await ok(first, MAKE_FILES)
        before = await described(first)
        workspace_id, old = first_workspace_of(first.id), first_workspace_of(other.id)
        await rig.provider.destroy(first.id, keep={workspace_id})
        await rig.store.attach(other.id, workspace_id)
        await rig.store.attach(other.id, workspace_id)
        assert await described(other) == before
        stored = (await rig.store.list()).workspaces
        assert workspace_id in stored
        assert old not in stored
        assert await ok(other, "echo new >new && echo more >>one && cat deep/hard") == "one\nmore\n"
        await rig.provider.destroy(other.id)
        assert workspace_id not in (await rig.store.list()).workspaces

    async def test_one_workspace_has_one_sandbox(self, rig: WorkspaceHarness) -> None:
        first, other = await rig.create(), await rig.create()
        await ok(first, "echo mine >a")
        with pytest.raises(Conflict):
            await rig.store.attach(other.id, first_workspace_of(first.id))
        await rig.store.attach(first.id, first_workspace_of(first.id))
        assert await ok(first, "cat a") == "mine\n"
        assert await ok(other, "ls -A") == ""

    async def test_attach_what_is_gone(self, rig: WorkspaceHarness) -> None:
        require_swaps(rig)
        sandbox = await rig.create()
        await ok(sandbox, "echo mine >a")
        with pytest.raises(NotFound):
            await rig.store.attach(sandbox.id, new_workspace_id())
        assert await ok(sandbox, "cat a") == "mine\n"

    async def test_no_sandbox_can_move_its_workspace(self, rig: WorkspaceHarness) -> None:
        sandbox = await rig.create()
        tries = (
            "mv /sandbox/workspace /sandbox/x; mkdir /sandbox/x; rmdir /sandbox/workspace; ln -s / /sandbox/x"
        )
        await ok(sandbox, f"({tries}) 2>/dev/null; ls -A /sandbox | grep -qx workspace")

    async def test_setuid_files_and_devices_are_dead(self, rig: WorkspaceHarness) -> None:
        if rig.store.abilities.kind is StoreKind.VOLUME:
            pytest.skip("volumes have no such mount options; the store says which walls hold instead")
        sandbox = await rig.create()
        await ok(sandbox, "cp /bin/true t; chmod 4755 t; mknod d c 1 3 2>/dev/null && cat d; ./t")
        options = await ok(sandbox, "grep ' /sandbox ' /proc/mounts")
        if " 9p " not in options:  # gVisor shows its own
            assert {"nosuid", "nodev"} <= set(options.split()[3].split(","))

    async def test_many_at_once(self, rig: WorkspaceHarness) -> None:
        sandboxes = await asyncio.gather(*(rig.create() for _ in range(4)))
        await asyncio.gather(*(ok(sandbox, f"echo {sandbox.id} >a") for sandbox in sandboxes))
        kept = {first_workspace_of(sandbox.id) for sandbox in sandboxes}
        await asyncio.gather(*(rig.provider.destroy(sandbox.id, keep=kept) for sandbox in sandboxes))
        again = await asyncio.gather(*(rig.create_with(first_workspace_of(s.id)) for s in sandboxes))
        read = await asyncio.gather(*(ok(sandbox, "cat a") for sandbox in again))
        assert read == [f"{sandbox.id}\n" for sandbox in sandboxes]
