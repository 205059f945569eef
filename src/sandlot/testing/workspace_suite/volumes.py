"""Volumes: files that several sandboxes see, and that no sandbox takes with it."""

from __future__ import annotations

import asyncio

import pytest

from sandlot.domain.capacity.limits import MIB
from sandlot.domain.errors import Conflict, NotFound
from sandlot.domain.ids import new_volume_id
from sandlot.providers.base import Sandbox
from sandlot.testing.eventually import eventually
from sandlot.testing.provider_suite.harness import ok, run
from sandlot.testing.workspace_suite.harness import (
    MAKE_FILES,
    TAG,
    WorkspaceCases,
    WorkspaceHarness,
    described,
    require_volumes,
)
from sandlot.testing.workspace_suite.quotas import SLACK, wrote_mib

QUOTA = 48 * MIB


async def volume(rig: WorkspaceHarness, quota_bytes: int = QUOTA) -> str:
    require_volumes(rig)
    volume_id = new_volume_id(TAG)
    rig.stored.append(volume_id)
    await rig.store.create_volume(volume_id, quota_bytes)
    return volume_id


async def attach(rig: WorkspaceHarness, sandbox: Sandbox, volume_id: str, *, writable: bool = True) -> None:
    await rig.store.attach_volume(sandbox.id, volume_id, "data", writable=writable)


class VolumeCases(WorkspaceCases):
    async def test_a_running_sandbox_gets_one(self, rig: WorkspaceHarness) -> None:
        volume_id = await volume(rig)
        sandbox = await rig.create()
        assert await ok(sandbox, "ls -A /volumes") == ""
        await attach(rig, sandbox, volume_id)
        await ok(sandbox, "echo a >/volumes/data/a && stat -c %u /volumes/data/a | grep -qx $(id -u)")
        await attach(rig, sandbox, volume_id)
        assert await ok(sandbox, "cat /volumes/data/a; ls -A") == "a\n"
        assert volume_id in (await rig.store.list()).volumes

    async def test_it_outlives_its_sandboxes(self, rig: WorkspaceHarness) -> None:
        """With modes, links, times, holes and names, for another sandbox."""
        volume_id = await volume(rig)
        first = await rig.create()
        await attach(rig, first, volume_id)
        await ok(first, f"cd /volumes/data; {MAKE_FILES}")
        await ok(first, "rm -r /volumes/data/*/shut 2>/dev/null; true")
        before = await ok(first, "cd /volumes/data; find . -printf '%P %y %m %T@ %l\n' | sort")
        await rig.provider.destroy(first.id)
        assert volume_id in (await rig.store.list()).volumes
        second = await rig.create()
        await attach(rig, second, volume_id)
        assert await ok(second, "cd /volumes/data; find . -printf '%P %y %m %T@ %l\n' | sort") == before
        await ok(second, "cd /volumes/data; echo more >>one; cat deep/hard")
        assert await described(second)

    async def test_one_sandbox_writes_at_a_time(self, rig: WorkspaceHarness) -> None:
        volume_id = await volume(rig)
        first, second = await rig.create(), await rig.create()
        await attach(rig, first, volume_id)
        with pytest.raises(Conflict):
            await attach(rig, second, volume_id)
        assert await ok(second, "ls -A /volumes") == ""
        await rig.provider.destroy(first.id)
        await attach(rig, second, volume_id)
        await ok(second, "echo b >/volumes/data/b")

    async def test_many_read_what_was_there_when_they_got_it(self, rig: WorkspaceHarness) -> None:
        volume_id = await volume(rig)
        writer, *readers = await asyncio.gather(*(rig.create() for _ in range(3)))
        await attach(rig, writer, volume_id)
        await ok(writer, "echo one >/volumes/data/a")
        await attach(rig, readers[0], volume_id, writable=False)
        await ok(writer, "echo two >/volumes/data/a; echo b >/volumes/data/b")
        await attach(rig, readers[1], volume_id, writable=False)
        await attach(rig, readers[0], volume_id, writable=False)
        assert await ok(readers[0], "cd /volumes/data; ls; cat a") == "a\none\n"
        assert await ok(readers[1], "cd /volumes/data; ls; cat a") == "a\nb\ntwo\n"
        # No chmod: gVisor says that it has worked, and nothing changes.
        for command in ("echo x >>a", "rm a", "mkdir d", "mv a c", "ln a l", "truncate -s 0 a"):
            result = await run(readers[0], f"cd /volumes/data && {command}")
            assert result.exit_code != 0, command
            assert b"Read-only" in result.output, (command, result)
        await rig.provider.destroy(readers[0].id)
        assert await ok(writer, "cat /volumes/data/a") == "two\n"

    async def test_a_sandbox_cannot_move_or_replace_one(self, rig: WorkspaceHarness) -> None:
        volume_id = await volume(rig)
        sandbox = await rig.create()
        await attach(rig, sandbox, volume_id)
        tries = (
            "mv /sandbox/volumes/data /sandbox/volumes/x; rmdir /volumes/data; mkdir /volumes/x;"
            "mv /sandbox/volumes /sandbox/x; ln -s / /volumes/y; rm /volumes"
        )
        assert await ok(sandbox, f"({tries}) 2>/dev/null; ls -A /volumes") == "data\n"
        options = await ok(sandbox, "grep ' /sandbox ' /proc/mounts")
        if " 9p " not in options:  # gVisor shows its own
            assert {"nosuid", "nodev"} <= set(options.split()[3].split(","))

    async def test_its_quota_is_its_own(self, rig: WorkspaceHarness) -> None:
        volume_id = await volume(rig)
        sandbox = await rig.create()
        await attach(rig, sandbox, volume_id)
        size = await wrote_mib(sandbox, "/volumes/data/big", QUOTA // MIB + 16)
        assert QUOTA - SLACK <= size <= QUOTA
        assert await ok(sandbox, "head -c 1000000 /dev/zero >a; stat -c %s a") == "1000000\n"

        async def counted() -> bool:
            used = await rig.store.used_bytes(volume_id)
            return used is not None and used >= size

        await eventually(counted, 40, "the usage counts what was written")
        await rig.provider.destroy(sandbox.id)
        other = await rig.create()
        await attach(rig, other, volume_id)
        result = await run(
            other, "head -c 20000000 /dev/urandom >/volumes/data/more && sync /volumes/data/more"
        )
        assert result.exit_code != 0, "a quota that another sandbox used up is used up"
        await ok(other, "rm /volumes/data/big", timeout_s=60)

        async def freed() -> bool:
            script = "head -c 1000000 /dev/zero >/volumes/data/a && sync /volumes/data/a"
            return (await run(other, script)).exit_code == 0

        await eventually(freed, 40, "what was deleted is free")

    async def test_a_volume_that_is_gone(self, rig: WorkspaceHarness) -> None:
        require_volumes(rig)
        sandbox = await rig.create()
        for writable in (True, False):
            with pytest.raises(NotFound):
                await attach(rig, sandbox, new_volume_id(TAG), writable=writable)
        assert await ok(sandbox, "ls -A /volumes") == ""

    async def test_delete_it(self, rig: WorkspaceHarness) -> None:
        volume_id = await volume(rig)
        writer, reader = await rig.create(), await rig.create()
        await attach(rig, writer, volume_id)
        await ok(writer, "echo a >/volumes/data/a")
        await attach(rig, reader, volume_id, writable=False)
        with pytest.raises(Conflict):
            await rig.store.delete(volume_id)
        await rig.provider.destroy(writer.id)
        await rig.store.delete(volume_id)
        await rig.store.delete(volume_id)
        assert volume_id not in (await rig.store.list()).volumes
        assert await ok(reader, "cat /volumes/data/a") == "a\n"

    async def test_a_restarted_worker_finds_them(self, rig: WorkspaceHarness) -> None:
        kept, free = await volume(rig), await volume(rig)
        sandbox = await rig.create()
        await attach(rig, sandbox, kept)
        await ok(sandbox, "echo a >/volumes/data/a")
        rig.provider = await rig.reopen()
        await rig.provider.open()
        assert {kept, free} <= (await rig.store.list()).volumes
        other = await rig.create()
        with pytest.raises(Conflict):
            await attach(rig, other, kept)
        await rig.provider.destroy(sandbox.id)
        await attach(rig, other, kept)
        assert await ok(other, "cat /volumes/data/a") == "a\n"
