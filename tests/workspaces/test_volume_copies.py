"""Snapshots of Docker volumes: of one moment, whole or not there, and bounded, whatever a sandbox has made."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from sandlot.domain.capacity.limits import MIB
from sandlot.domain.environment import Tier
from sandlot.domain.errors import InvalidRequest, SandlotError, StorageFull
from sandlot.domain.ids import first_workspace_of
from sandlot.domain.workspaces.snapshots import Difference
from sandlot.providers.base import Sandbox
from sandlot.providers.docker.engine import Engine
from sandlot.providers.docker.spec import container_name
from sandlot.providers.docker.workspaces.volumes.copier import LABEL_COPIER
from sandlot.providers.docker.workspaces.volumes.steps import VolumeStep
from sandlot.providers.docker.workspaces.volumes.store import VolumeStore
from sandlot.testing.provider_suite.harness import ok
from sandlot.testing.workspace_suite import WorkspaceHarness
from tests.workspaces.conftest import workspace_harness_for

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="session")]


@pytest_asyncio.fixture(loop_scope="session", params=[Tier.RUNC, Tier.RUNSC])
async def rig(request: pytest.FixtureRequest) -> AsyncIterator[WorkspaceHarness]:
    async with workspace_harness_for(request.param, None) as harness:
        yield harness
        await harness.clean()


@pytest_asyncio.fixture(loop_scope="session")
async def on_runc() -> AsyncIterator[WorkspaceHarness]:
    async with workspace_harness_for(Tier.RUNC, None) as harness:
        yield harness
        await harness.clean()


def folder_of(rig: WorkspaceHarness) -> Path:
    store = rig.store
    assert isinstance(store, VolumeStore)
    return store._archives._root


def another_store(rig: WorkspaceHarness, folder: Path | None = None, **limits: int) -> VolumeStore:
    provider = rig.provider
    return VolumeStore(provider._engine, provider._owner, folder or folder_of(rig), **limits)  # type: ignore[attr-defined,arg-type]


async def test_a_snapshot_shows_one_moment(rig: WorkspaceHarness) -> None:
    """A process that goes on writing stands still while its files are copied, and goes on afterwards."""
    sandbox = await rig.create()
    fill = "head -c 20000000 /dev/urandom >m; mkdir z; echo 0 >a; echo 0 >z/b"
    count = "i=0; while :; do i=$((i+1)); echo $i >a.new; mv a.new a; echo $i >z/b.new; mv z/b.new z/b; done"
    await ok(sandbox, f"{fill}; ({count}) >/dev/null 2>&1 & sleep 0.5")
    copy = await rig.create_with(await rig.copy_of(await rig.take(sandbox)))
    first, last = map(int, (await ok(copy, "cat a z/b")).split())
    assert first - last in (0, 1)
    assert first > 0
    assert await ok(sandbox, "x=$(cat a); while [ $x = $(cat a) ]; do :; done; echo on") == "on\n"


async def test_a_hostile_tree(rig: WorkspaceHarness) -> None:
    sandbox = await rig.create()
    await ok(
        sandbox,
        "ln -s / root; ln -s ../../etc up; ln -s . here; ln -s /sandbox/workspace/self self; mkfifo fifo || true;"
        r" printf x >'-rf'; printf x >"
        "\"$(printf 'new\\nline')\"; mkdir \"$(printf '\\377')\"; touch \"$(printf '\\377/..\\\\..')\";"
        " cp /bin/true setuid; chmod 4755 setuid; mkdir -m 0 none; rm -f fifo",
    )
    seen = "find . -mindepth 1 -printf '%y %m %s %l %P\\0' 2>/dev/null | sort -z | sha256sum"
    before = await ok(sandbox, seen)
    snapshot_id = await rig.take(sandbox)
    copy_id = await rig.copy_of(snapshot_id)
    assert await ok(await rig.create_with(copy_id), seen) == before
    assert await rig.store.compare(snapshot_id, copy_id) == Difference()


async def test_what_is_too_large_is_refused_at_once(on_runc: WorkspaceHarness) -> None:
    rig = on_runc
    sandbox = await rig.create()
    await ok(sandbox, "truncate -s 4T huge")
    store = another_store(rig, max_bytes=64 * MIB)
    with pytest.raises(StorageFull, match="SANDLOT_WORKSPACE_QUOTA"):
        await store.snapshot(first_workspace_of(sandbox.id), rig.new_snapshot())
    await check_nothing_left(rig, sandbox)
    half = "/".join(["n" * 200] * 80)
    await ok(
        sandbox,
        f"rm huge; mkdir -p a; cd a; for i in 1 2 3; do mkdir -p {half[: 200 * 18]}; cd {half[: 200 * 18]}; done",
    )
    await store.snapshot(first_workspace_of(sandbox.id), rig.new_snapshot())
    await ok(
        sandbox, f"cd a; for i in $(seq 10); do mkdir -p {half[: 200 * 18]}; cd {half[: 200 * 18]}; done"
    )
    with pytest.raises(InvalidRequest, match="deeper"):
        await store.snapshot(first_workspace_of(sandbox.id), rig.new_snapshot())
    await check_nothing_left(rig, sandbox, snapshots=1)


async def test_a_full_disk_refuses_and_keeps_nothing(on_runc: WorkspaceHarness, small_disk: Path) -> None:
    rig = on_runc
    sandbox = await rig.create()
    await ok(sandbox, "head -c 12000000 /dev/urandom >large")
    for floor in (64 * MIB, 0):  # no space to begin with; used up on the way
        store = another_store(rig, small_disk / str(floor), min_free_bytes=floor)
        await store.open()
        snapshot_id = rig.new_snapshot()
        with pytest.raises(StorageFull):
            await store.snapshot(first_workspace_of(sandbox.id), snapshot_id)
        assert not (await store.list()).snapshots
        assert not list((small_disk / str(floor) / "staging").iterdir())
        await check_nothing_left(rig, sandbox)
    await ok(sandbox, "rm large; echo small >a")
    await store.snapshot(first_workspace_of(sandbox.id), snapshot_id)
    await store.delete(snapshot_id)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)], check=True, timeout=30)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True, timeout=30)


def flipped(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


async def test_a_damaged_snapshot_becomes_no_workspace(on_runc: WorkspaceHarness) -> None:
    rig = on_runc
    sandbox = await rig.create()
    await ok(sandbox, "head -c 5000000 /dev/urandom >a")
    snapshot_id = await rig.take(sandbox)
    path = folder_of(rig) / "snapshots" / f"{snapshot_id}.tar.zst"
    whole = path.read_bytes()
    before = (await rig.store.list()).workspaces
    for damaged in (whole[: len(whole) // 2], flipped(whole, 1000), b""):
        path.write_bytes(damaged)
        with pytest.raises(SandlotError, match="damaged"):
            await rig.copy_of(snapshot_id)
        assert (await rig.store.list()).workspaces == before
    path.write_bytes(whole)
    assert await rig.store.compare(snapshot_id, await rig.copy_of(snapshot_id)) == Difference()


@pytest.mark.parametrize("step", list(VolumeStep))
async def test_killed_at_a_step(on_runc: WorkspaceHarness, step: VolumeStep) -> None:
    rig = on_runc
    sandbox = await rig.create()
    await ok(sandbox, "mkdir d; seq 1000 >d/a; ln d/a b; ln -s b c")
    workspace_id, snapshot_id, copy_id = (
        first_workspace_of(sandbox.id),
        rig.new_snapshot(),
        rig.new_workspace(),
    )
    ids = (workspace_id, snapshot_id, copy_id)
    if step is VolumeStep.VOLUME_REMOVED:  # which only the next start does
        assert await run_until(rig, *ids, VolumeStep.VOLUME_FILLED.value) == -signal.SIGKILL
    assert await run_until(rig, *ids, step.value) == -signal.SIGKILL
    store = another_store(rig)
    await store.open()
    stored = await store.list()
    assert stored.workspaces <= {workspace_id, copy_id}
    for whole in stored.workspaces if snapshot_id in stored.snapshots else ():
        assert await store.compare(snapshot_id, whole) == Difference()
    await check_nothing_left(rig, sandbox, snapshots=len(stored.snapshots))
    assert await run_until(rig, *ids) == 0
    assert await store.compare(snapshot_id, copy_id) == Difference()


async def run_until(rig: WorkspaceHarness, *arguments: str) -> int:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.workspaces.dying_volumes", rig.provider._owner, str(folder_of(rig)),  # type: ignore[attr-defined]
        *arguments, stderr=subprocess.PIPE,
    )  # fmt: skip
    _, errors = await process.communicate()
    assert process.returncode in (0, -signal.SIGKILL), errors.decode()
    return process.returncode


async def check_nothing_left(rig: WorkspaceHarness, sandbox: Sandbox, snapshots: int = 0) -> None:
    """Nothing half done, nothing paused, no container beside the sandbox."""
    folder = folder_of(rig)
    for name in ("staging", "filling", "paused"):
        assert not list((folder / name).iterdir()), name
    assert len(list((folder / "snapshots").iterdir())) == snapshots
    engine = Engine()
    try:
        assert not await engine.list({LABEL_COPIER: rig.provider._owner})  # type: ignore[attr-defined]
        assert (await engine.inspect(container_name(sandbox.id)))["State"]["Status"] == "running"
    finally:
        await engine.close()
    assert await ok(sandbox, "echo ok") == "ok\n"
