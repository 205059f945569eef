"""Snapshots: what they keep, copies of them, and how files differ."""

from __future__ import annotations

import asyncio

import pytest

from sandlot.domain.capacity.limits import MIB
from sandlot.domain.errors import NotFound, Unsupported
from sandlot.domain.ids import first_workspace_of, new_snapshot_id, new_workspace_id
from sandlot.domain.workspaces.snapshots import MAX_DIFFERENCES, Difference
from sandlot.domain.workspaces.workspace import StoreKind
from sandlot.testing.provider_suite.harness import ok
from sandlot.testing.workspace_suite.harness import (
    MAKE_FILES,
    TAG,
    WorkspaceCases,
    WorkspaceHarness,
    described,
    require_snapshots,
)


class SnapshotCases(WorkspaceCases):
    async def test_a_store_without_snapshots_says_so(self, rig: WorkspaceHarness) -> None:
        if rig.store.abilities.snapshots:
            pytest.skip("the store takes snapshots")
        assert rig.store.abilities.note
        workspace_id, snapshot_id = first_workspace_of((await rig.create()).id), new_snapshot_id(TAG)
        for call in (
            rig.store.snapshot(workspace_id, snapshot_id),
            rig.store.clone(snapshot_id, new_workspace_id()),
            rig.store.compare(snapshot_id, workspace_id),
            rig.store.changed(workspace_id, snapshot_id),
        ):
            with pytest.raises(Unsupported, match="snapshots"):
                await call

    async def test_a_snapshot_never_changes(self, rig: WorkspaceHarness) -> None:
        require_snapshots(rig)
        sandbox = await rig.create()
        await ok(sandbox, MAKE_FILES)
        before = await described(sandbox)
        snapshot_id = await rig.take(sandbox)
        await ok(sandbox, "chmod 700 shut; rm -rf one deep shut; echo other >hole; mkdir one")
        await rig.store.snapshot(first_workspace_of(sandbox.id), snapshot_id)  # done already
        assert snapshot_id in (await rig.store.list()).snapshots
        assert await described(await rig.create_with(await rig.copy_of(snapshot_id))) == before
        copy = await rig.copy_of(snapshot_id)
        await rig.store.clone(snapshot_id, copy)
        await rig.provider.destroy(sandbox.id)
        rig.provider = await rig.reopen()
        await rig.provider.open()
        assert await described(await rig.create_with(copy)) == before

    async def test_copies_share_nothing_that_they_change(self, rig: WorkspaceHarness) -> None:
        require_snapshots(rig)
        sandbox = await rig.create()
        await ok(sandbox, "echo 0 >a")
        snapshot_id = await rig.take(sandbox)
        copies = await asyncio.gather(*(rig.copy_of(snapshot_id) for _ in range(3)))
        forks = [sandbox, *await asyncio.gather(*map(rig.create_with, copies))]
        for number, fork in enumerate(forks):
            await ok(fork, f"echo {number} >>a; echo {number} >own")
        assert [await ok(fork, "cat a own") for fork in forks] == [f"0\n{n}\n{n}\n" for n in range(4)]
        await rig.store.delete(snapshot_id)
        await rig.store.delete(snapshot_id)
        assert [await ok(fork, "cat own") for fork in forks] == [f"{n}\n" for n in range(4)]
        assert snapshot_id not in (await rig.store.list()).snapshots
        with pytest.raises(NotFound):
            await rig.store.clone(snapshot_id, rig.new_workspace())

    async def test_what_is_not_there(self, rig: WorkspaceHarness) -> None:
        require_snapshots(rig)
        with pytest.raises(NotFound):
            await rig.store.snapshot(new_workspace_id(), rig.new_snapshot())
        with pytest.raises(NotFound):
            await rig.store.clone(new_snapshot_id(TAG), rig.new_workspace())
        workspace_id = first_workspace_of((await rig.create()).id)
        with pytest.raises(NotFound):
            await rig.store.compare(new_snapshot_id(TAG), workspace_id)

    async def test_finished_commands_are_in_it_completely(self, rig: WorkspaceHarness) -> None:
        require_snapshots(rig)
        sandbox = await rig.create()
        for number in range(10):
            sums = await ok(sandbox, f"head -c 300000 /dev/urandom >f; echo {number} >>log; sha256sum f log")
            copy = await rig.create_with(await rig.copy_of(await rig.take(sandbox)))
            assert await ok(copy, "sha256sum f log") == sums
            await rig.destroy(copy.id)

    @pytest.mark.parametrize(
        "change",
        ["echo x >>a", "printf b | dd of=a conv=notrunc 2>/dev/null", "chmod 600 a", "mv a b", "mkdir d", "rm a",
         "ln a b", "touch -d 2001-01-01 a", "ln -sf y l"],
    )  # fmt: skip
    async def test_every_change_is_noticed(self, rig: WorkspaceHarness, change: str) -> None:
        require_snapshots(rig)
        sandbox = await rig.create()
        await ok(sandbox, "echo a >a; ln -s x l")
        snapshot_id, workspace_id = await rig.take(sandbox), first_workspace_of(sandbox.id)
        await ok(sandbox, change)
        assert await rig.store.changed(workspace_id, snapshot_id)
        assert await rig.store.changed(workspace_id, await rig.take(sandbox)) is False

    async def test_reading_is_no_change(self, rig: WorkspaceHarness) -> None:
        require_snapshots(rig)
        sandbox = await rig.create()
        await ok(sandbox, MAKE_FILES)
        snapshot_id = await rig.take(sandbox)
        look = f"cat one deep/two >/dev/null; {DESCRIBE_ALL}; echo x >/tmp/elsewhere"
        await ok(sandbox, look)
        assert await rig.store.changed(first_workspace_of(sandbox.id), snapshot_id) is False
        copy = await rig.copy_of(snapshot_id)
        assert await rig.store.changed(copy, snapshot_id) is False
        other = await rig.create_with(copy)
        await ok(other, look)
        assert await rig.store.changed(copy, snapshot_id) is False
        await ok(other, "echo x >>one")
        assert await rig.store.changed(copy, snapshot_id)
        assert await rig.store.changed(first_workspace_of(sandbox.id), snapshot_id) is False
        assert await rig.store.changed(copy, new_snapshot_id(TAG)), "in doubt, it was"

    async def test_the_space_that_one_needs_alone(self, rig: WorkspaceHarness) -> None:
        """A store whose snapshots share their blocks does not guess: none of them has a size of its own."""
        require_snapshots(rig)
        sandbox = await rig.create()
        await ok(sandbox, f"head -c {4 * MIB} /dev/urandom >big; sync", timeout_s=60)
        first = await rig.take(sandbox)
        await ok(sandbox, "rm big")
        sizes = [await rig.store.used_bytes(one) for one in (first, await rig.take(sandbox))]
        if rig.store.abilities.kind is StoreKind.BTRFS:
            assert sizes == [None, None]
        else:
            large, small = sizes
            assert large is not None
            assert small is not None
            assert 4 * MIB <= large < 5 * MIB
            assert 0 < small < MIB

    async def test_differences(self, rig: WorkspaceHarness) -> None:
        require_snapshots(rig)
        sandbox = await rig.create()
        await ok(sandbox, "mkdir d e; echo 1 >same; echo 1 >d/changed; echo 1 >mode; echo 1 >gone; echo 1 >e/x; echo 1 >type; ln -s a l; echo 1 >forged; touch -d 2001-01-01 forged; echo 1 >touched")  # fmt: skip
        workspace_id, old = first_workspace_of(sandbox.id), await rig.take(sandbox)
        assert await rig.store.compare(old, workspace_id) == Difference()
        await ok(sandbox, "echo 2 >d/changed; chmod 600 mode; rm -r gone e; mkdir -p n/m; echo 2 >n/m/x; rm type; mkdir type; echo 2 >type/y; ln -sf b l; echo 2 >forged; touch -d 2001-01-01 forged; touch -d 2001-01-01 touched; ln -s / root; printf x >\"$(printf 'bad\\377name')\"")  # fmt: skip
        difference = await rig.store.compare(old, workspace_id)
        assert difference.added == ("bad\\xffname", "n", "n/m", "n/m/x", "root", "type/y")
        assert difference.changed == ("d/changed", "forged", "l", "mode", "type")
        assert difference.removed == ("e", "e/x", "gone")
        assert not difference.truncated
        assert await rig.store.compare(old, await rig.take(sandbox)) == difference

    async def test_differences_are_bounded(self, rig: WorkspaceHarness) -> None:
        require_snapshots(rig)
        sandbox = await rig.create()
        old = await rig.take(sandbox)
        await ok(sandbox, f"mkdir d; cd d; seq -f %06g {MAX_DIFFERENCES + 100} | xargs touch", timeout_s=120)
        difference = await rig.store.compare(old, first_workspace_of(sandbox.id))
        assert difference.truncated
        assert len(difference.added) == MAX_DIFFERENCES
        assert "d/000001" in difference.added

    async def test_a_path_that_is_too_long(self, rig: WorkspaceHarness) -> None:
        require_snapshots(rig)
        sandbox = await rig.create()
        old = await rig.take(sandbox)
        # Two halves that are short enough, one inside the other.
        half = "/".join(["n" * 200] * 15)
        await ok(sandbox, f"mkdir -p a/{half} b/{half}; echo x >b/{half}/y; mv b a/{half}/", timeout_s=60)
        assert (await rig.store.compare(old, first_workspace_of(sandbox.id))).truncated
        workspace_id = await rig.copy_of(await rig.take(sandbox))
        await rig.store.delete(workspace_id)
        assert workspace_id not in (await rig.store.list()).workspaces


DESCRIBE_ALL = "find . -ls >/dev/null"
