"""The btrfs store is killed at each of its steps: the next start finds the old state or the new one."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from sandlot.providers.docker.workspaces.btrfs import removing
from sandlot.providers.docker.workspaces.btrfs.steps import StoreStep
from sandlot.providers.docker.workspaces.btrfs.store import BtrfsStore
from sandlot.providers.docker.workspaces.btrfs.subvolumes import ROOT_INODE
from tests.workspaces.dying_store import NAMES, OWNER, S1, S2, SB1, SB2, SB3, UID, V1, V2, W1, W2

# How often all calls together reach a step at least, where that is more than once.
TIMES = {
    **dict.fromkeys([StoreStep.SANDBOX_STAGED, StoreStep.SANDBOX_PUBLISHED, StoreStep.MOUNTED], 3),
    **dict.fromkeys([StoreStep.IN_TRASH, StoreStep.DELETED, StoreStep.ATTACHED], 2),
}
CASES = [(step, number) for step in StoreStep for number in range(1, TIMES.get(step, 1) + 1)]


@pytest_asyncio.fixture
async def root(btrfs: Path) -> AsyncIterator[Path]:
    """The owner's folder, which is empty at the end."""
    yield btrfs / OWNER
    store = BtrfsStore(btrfs, OWNER)
    await store.open()
    for sandbox_id in (SB1, SB2, SB3):
        await store.release(sandbox_id)
    stored = await store.list()
    for stored_id in stored.workspaces | stored.snapshots | stored.volumes:
        await store.delete(stored_id)
    await store.close()
    assert {path.parent.name for path in subvolumes_in(btrfs / OWNER)} <= {"seeds"}
    removing.remove(btrfs, OWNER)


def subvolumes_in(root: Path) -> set[Path]:
    return {
        Path(folder) / name
        for folder, names, _ in os.walk(root)
        for name in names
        if (Path(folder) / name).stat().st_ino == ROOT_INODE and not is_below_mount(root, Path(folder))
    }


def is_below_mount(root: Path, folder: Path) -> bool:
    return folder.is_relative_to(root / "mounts")


def mounted(root: Path) -> set[str]:
    points = {line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()}
    return {Path(point).name for point in points if Path(point).parent == root / "mounts"}


async def run_until(root: Path, progress: Path, *death: str) -> int:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.workspaces.dying_store", str(root.parent), str(progress), *death,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    _, errors = await process.communicate()
    assert process.returncode in (0, -signal.SIGKILL), errors.decode()
    return process.returncode


def check_whole(root: Path, tree: Path) -> str:
    """Returns a tree's version. It has no files of two."""
    versions = {(tree / name).read_text() for name in NAMES}
    assert len(versions) == 1, f"{tree.relative_to(root)} is half done"
    return versions.pop()


@pytest.mark.parametrize(("step", "number"), CASES)
async def test_killed_at_a_step(root: Path, tmp_path: Path, step: StoreStep, number: int) -> None:
    progress = tmp_path / "progress"
    progress.touch()
    assert await run_until(root, progress, step.value, str(number)) == -signal.SIGKILL
    await check_opened(root)
    assert await run_until(root, progress) == 0
    store = await check_opened(root)
    assert (await store.list()).workspaces == {W1}
    assert (await store.list()).snapshots == {S2}
    assert check_whole(root, root / "sandboxes" / SB3 / "parent" / "workspace") == "2"
    assert check_whole(root, root / "snapshots" / S2) == "3"
    assert (await store.list()).volumes == {V1}
    assert check_whole(root, root / "sandboxes" / SB3 / "parent" / "volumes" / "data") == "4"
    assert mounted(root) == {SB3}
    owners = {path.stat().st_uid for path in (root / "mounts" / SB3 / "workspace").iterdir()}
    assert owners <= {UID, 0}
    assert not (root / "snapshots" / S1).exists()


async def check_opened(root: Path) -> BtrfsStore:
    """A store that is opened finds whole trees, and nothing else."""
    store = BtrfsStore(root.parent, OWNER)
    await store.open()
    await store.close()
    stored = await store.list()
    assert stored.workspaces <= {W1, W2, *first_workspaces()}
    found = subvolumes_in(root)
    volumes = {path for path in found if path.parent.name == "volumes"}
    check_volumes(root, stored.volumes, volumes)
    found -= volumes
    named = [path.name for path in found if path.parent.name != "seeds"]
    assert sorted(named) == sorted(
        [*stored.snapshots, *(["workspace"] * attached(root)), *os.listdir(root / "workspaces")]
    )
    assert len(stored.workspaces) == attached(root) + len(os.listdir(root / "workspaces"))
    for path in found:
        check_whole(root, path)
    assert mounted(root) <= set(os.listdir(root / "sandboxes"))
    assert not os.listdir(root / "staging")
    assert not os.listdir(root / "trash")
    return store


def check_volumes(root: Path, stored: frozenset[str], found: set[Path]) -> None:
    """Each is in one place, whole, and its sandbox is noted. All others are read-only copies."""
    assert stored <= {V1, V2}
    detached = {path.name for path in found if path.parent.parent == root}
    notes = {note: os.readlink(note) for note in (root / "sandboxes").glob("*/writes/*")}
    assert sorted([*detached, *notes.values()]) == sorted(stored)
    writable = {note.parent.parent / "parent" / "volumes" / note.name for note in notes}
    assert writable <= found
    for path in found:
        if path in writable or path.name in detached:
            assert os.access(path, os.W_OK)
        else:
            assert os.statvfs(path).f_flag & os.ST_RDONLY or not os.access(path, os.W_OK)
        if os.listdir(path):
            check_whole(root, path)


def attached(root: Path) -> int:
    return len(list((root / "sandboxes").glob("*/parent/workspace")))


def first_workspaces() -> set[str]:
    return {"wsp_" + sandbox_id.removeprefix("sbx_") for sandbox_id in (SB1, SB2, SB3)}
