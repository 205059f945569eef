"""Quotas: who is full, who is not, and what counts."""

from __future__ import annotations

import os

from sandlot.domain.capacity.limits import MIB
from sandlot.domain.execution import Verdict
from sandlot.domain.ids import first_workspace_of
from sandlot.providers.base import Sandbox
from sandlot.testing.eventually import eventually
from sandlot.testing.provider_suite.harness import ok, run
from sandlot.testing.workspace_suite.harness import WorkspaceCases, WorkspaceHarness, require_quotas

# How much of a quota the file system may need for itself.
SLACK = 8 * MIB


async def wrote_mib(sandbox: Sandbox, name: str, mib: int) -> int:
    """How many bytes of that could be written."""
    script = f"dd if=/dev/urandom of={name} bs=64k count={mib * 16} iflag=fullblock conv=fsync 2>/tmp/errors; cat /tmp/errors >&2; stat -c %s {name} || echo 0"
    result = await run(sandbox, script, timeout_s=120)
    if (size := int(result.stdout)) < mib * MIB:
        assert b"quota exceeded" in result.stderr or b"No space left" in result.stderr, result
    return size


class QuotaCases(WorkspaceCases):
    async def test_only_the_one_that_is_full_is(self, rig: WorkspaceHarness) -> None:
        quota = require_quotas(rig)
        full, neighbour = await rig.create(), await rig.create()
        size = await wrote_mib(full, "big", quota // MIB + 16)
        assert quota - SLACK <= size <= quota
        assert await ok(neighbour, "head -c 1000000 /dev/zero >a; stat -c %s a") == "1000000\n"
        await ok(full, "rm big; head -c 1000000 /dev/zero >a", timeout_s=60)

    async def test_inodes_are_bounded_too(self, rig: WorkspaceHarness) -> None:
        quota = require_quotas(rig)
        full, neighbour = await rig.create(), await rig.create()
        # Each file has an inode and three entries with its name, of more than 512 bytes together.
        names = f"seq -f {'n' * 200}%g {quota // 512}"
        script = f"mkdir d; cd d; {names} | xargs -n 500 sh -c 'touch \"$@\" || exit 255' _"
        result = await run(full, script, timeout_s=170)
        assert b"quota exceeded" in result.stderr or b"No space left" in result.stderr, result
        assert result.verdict is Verdict.DISK_FULL, result
        assert (await run(full, "false")).verdict is Verdict.NONZERO
        assert await ok(neighbour, "touch a; ls") == "a\n"

    async def test_usage(self, rig: WorkspaceHarness) -> None:
        require_quotas(rig)
        sandbox = await rig.create()
        workspace_id = first_workspace_of(sandbox.id)
        before = await rig.store.used_bytes(workspace_id) or 0
        await wrote_mib(sandbox, "a", 16)

        async def grown() -> bool:
            os.sync()
            used = await rig.store.used_bytes(workspace_id)
            return used is not None and 16 * MIB <= used - before <= 16 * MIB + SLACK

        await eventually(grown, 30, "the usage counts what was written")

    async def test_inherited_files_count(self, rig: WorkspaceHarness) -> None:
        """Also for copies of copies."""
        quota = require_quotas(rig)
        sandbox = await rig.create()
        for number in range(2):
            await wrote_mib(sandbox, f"part{number}", quota // MIB // 4)
            if rig.store.abilities.snapshots:
                workspace_id = await rig.copy_of(await rig.take(sandbox))
                await rig.destroy(sandbox.id)
                sandbox = await rig.create_with(workspace_id)
                break
        half = await wrote_mib(sandbox, "rest", quota // MIB)
        assert half <= quota - (quota // 4) + SLACK

    async def test_replaced_files_do_not_count_for_ever(self, rig: WorkspaceHarness) -> None:
        """A snapshot keeps the old ones, and its session goes on."""
        quota = require_quotas(rig)
        if not rig.store.abilities.snapshots:
            return
        sandbox = await rig.create()
        most = quota // MIB * 5 // 8

        async def fits() -> bool:
            return await wrote_mib(sandbox, "big", most) == most * MIB

        # Deleted files stop counting once the store has counted again, so the next ones fit a little later.
        for number in range(4):
            await eventually(fits, 60, f"round {number} fits")
            await rig.take(sandbox)
            await ok(sandbox, "rm big; sync")
