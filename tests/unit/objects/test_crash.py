"""kill -9 at every step of a save and of a collection: each snapshot is complete, or not there."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.objects.conftest import Opener, objects, snapshot
from tests.unit.objects.trees import contents

from sandlot.providers.trees.place import empty

pytestmark = pytest.mark.slow
MAX_STEPS = 60
Folders = Callable[[str], Path]


def run(store: Path, tree: Path, what: str, last: int) -> bool:
    """Whether the worker died."""
    ended = subprocess.run(
        [sys.executable, SCRIPT, store, tree, snapshot(2), snapshot(1), what, str(last)],
        stdin=subprocess.DEVNULL,
        timeout=60,
        check=False,
    )
    assert ended.returncode in (0, -signal.SIGKILL)
    return ended.returncode != 0


SCRIPT = Path(__file__).parent / "dying.py"


async def test_a_worker_may_die_at_any_step_of_a_save(
    opened: Opener, tree: Path, store: Path, folders: Folders
) -> None:
    into = folders("into")
    before = contents(tree)
    storage = await opened(None)
    await storage.save("tenant", snapshot(1), tree)
    copy = folders("copy")
    await storage.load("tenant", snapshot(1), copy)
    for number in range(3):
        (tree / f"more{number}").write_bytes(random.Random(number).randbytes(400_000))
    after = contents(tree)
    shutil.copytree(store, store.parent / "good")
    for step in range(1, MAX_STEPS):
        died = run(store, tree, "save", step)
        saved = await storage.list()
        assert saved == [("tenant", snapshot(1))] + [("tenant", snapshot(2))] * (not died)
        await storage.load("tenant", snapshot(1), into)
        assert contents(into) == before
        empty(into)
        if died:  # the next one goes on from there
            again = await storage.save("tenant", snapshot(2), tree, base=snapshot(1))
            assert again.files_read <= again.files
        await storage.load("tenant", snapshot(2), into)
        assert contents(into) == after
        empty(into)
        shutil.rmtree(store)
        shutil.copytree(store.parent / "good", store)
        if not died:
            assert step > 3
            return
    raise AssertionError("it never got to its end")


async def test_a_worker_may_die_at_any_step_of_a_collection(
    opened: Opener, tree: Path, store: Path, folders: Folders
) -> None:
    into = folders("into")
    storage = await opened(None)
    for number in range(6):
        (tree / f"own{number}").write_bytes(random.Random(number).randbytes(200_000))
        await storage.save("tenant", snapshot(10 + number), tree)
        (tree / f"own{number}").unlink()
    await storage.save("tenant", snapshot(1), tree)
    for number in range(6):
        await storage.delete("tenant", snapshot(10 + number))
    shutil.copytree(store, store.parent / "good")
    hasty = await opened(None, grace_s=0.0)
    for step in range(1, MAX_STEPS):
        died = run(store, tree, "collect", step)
        for lock in store.rglob("collecting"):
            os.utime(lock, (0, 0))  # a quarter of an hour later
        await hasty.collect()
        await hasty.collect()
        await storage.load("tenant", snapshot(1), into)
        assert contents(into) == contents(tree)
        empty(into)
        await storage.save("tenant", snapshot(3), tree)
        await storage.load("tenant", snapshot(3), into)
        assert contents(into) == contents(tree)
        empty(into)
        chunks = {path for path in objects(store) if "/chunks/" in path}
        assert len(chunks) <= 8, "all that was needed by the others is freed"
        shutil.rmtree(store)
        shutil.copytree(store.parent / "good", store)
        if not died:
            assert step > 6
            return
    raise AssertionError("it never got to its end")
