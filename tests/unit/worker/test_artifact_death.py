"""A worker is killed while it keeps and deletes artifacts: what was kept is whole, and nothing else is left.

The same holds for their copies in object storage, once the next worker has worked off the queue.
"""

from __future__ import annotations

import hashlib
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.unit.worker.dying_keeper import opened, storage_of

from sandlot.testing.eventually import eventually
from sandlot.worker.artifacts.artifacts import Artifacts
from sandlot.worker.failpoints import Step
from sandlot.worker.workspaces.objects.artifacts.storage import SavedArtifacts

SCRIPT = Path(__file__).with_name("dying_keeper.py")
STEPS = (
    Step.ARTIFACT_STORED,
    Step.ARTIFACT_RECORDED,
    Step.ARTIFACT_FORGOTTEN,
    Step.COPY_PUBLISHED,
    Step.COPY_RECORDED,
    Step.COPY_DELETED,
)
ROUNDS = 10
ENDS_WITHIN_S = 60


async def check(folder: Path, printed: str) -> None:
    """After another start: each artifact is whole, each that was told of is there, and no file has no artifact."""
    lines = [line.split() for line in printed.splitlines() if line.count(" ") == 1]
    told = {artifact_id for what, artifact_id in lines if what == "kept"}
    deleted = {artifact_id for what, artifact_id in lines if what == "deletes"}
    storage = storage_of(folder)
    artifacts = opened(folder, storage)
    await artifacts.open()
    try:
        page = await artifacts.page("default", None, None, None, 1000)
        for artifact in page.artifacts:
            content = b"".join([piece async for piece in artifacts.read("default", artifact.id)])
            assert (len(content), hashlib.sha256(content).hexdigest()) == (artifact.size, artifact.sha256)
        assert told - deleted <= {artifact.id for artifact in page.artifacts}
        files = {path.name for path in (folder / "artifacts").rglob("*") if path.is_file()}
        assert files == {artifact.sha256 for artifact in page.artifacts}
        await until_saved(artifacts)
        saved = SavedArtifacts(storage)
        assert tuple(await saved.page("default", None, None, "", 1000, ())) == page.artifacts
        for artifact in page.artifacts:
            content = b"".join([piece async for piece in saved.read("default", artifact.id)])
            assert hashlib.sha256(content).hexdigest() == artifact.sha256
    finally:
        await artifacts.close()
        await storage.close()


async def until_saved(artifacts: Artifacts) -> None:
    async def nothing_to_do() -> bool:
        return not await artifacts._records.copies_to_do(1)

    await eventually(nothing_to_do, ENDS_WITHIN_S)


def killed_at(folder: Path, step: Step) -> str:
    """Run the keeper until it kills itself. Returns what it has printed."""
    command = [sys.executable, str(SCRIPT), str(folder), step.value]
    ended = subprocess.run(command, stdout=subprocess.PIPE, timeout=ENDS_WITHIN_S, check=False)
    assert ended.returncode == -signal.SIGKILL
    return ended.stdout.decode()


@pytest.mark.parametrize("step", STEPS)
async def test_killed_at_a_step(tmp_path: Path, step: Step) -> None:
    await check(tmp_path, killed_at(tmp_path, step))


async def test_killed_while_it_takes_artifacts_over(tmp_path: Path) -> None:
    """The disk is new, and object storage has what was kept."""
    killed_at(tmp_path, Step.COPY_DELETED)
    storage = storage_of(tmp_path)
    artifacts = opened(tmp_path, storage)
    await artifacts.open()
    await until_saved(artifacts)
    before = (await artifacts.page("default", None, None, None, 1000)).artifacts
    assert before
    await artifacts.close()
    for path in tmp_path.iterdir():
        if path.name.startswith("artifacts"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    killed_at(tmp_path, Step.COPIES_FOUND)
    artifacts = opened(tmp_path, storage)
    await artifacts.open()

    async def all_there() -> bool:
        found = (await artifacts.page("default", None, None, None, 1000)).artifacts
        return set(before) <= set(found)

    await eventually(all_there, ENDS_WITHIN_S)
    for artifact in before:
        content = b"".join([piece async for piece in artifacts.read("default", artifact.id)])
        assert hashlib.sha256(content).hexdigest() == artifact.sha256
    await artifacts.close()
    await storage.close()


@pytest.mark.slow
async def test_killed_at_any_moment(tmp_path: Path) -> None:
    """Each round goes on with what the last one left."""
    chance = random.Random(1)
    printed = ""
    for _ in range(ROUNDS):
        process = subprocess.Popen([sys.executable, str(SCRIPT), str(tmp_path)], stdout=subprocess.PIPE)
        with process:
            assert process.stdout is not None
            printed += process.stdout.readline().decode()  # it is at work
            time.sleep(chance.uniform(0, 0.1))
            process.kill()
            printed += process.stdout.read().decode()
        await check(tmp_path, printed)
    assert printed.count("kept") > ROUNDS
