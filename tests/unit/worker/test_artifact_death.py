"""A worker is killed while it keeps and deletes artifacts: what was kept is whole, and nothing else is left."""

from __future__ import annotations

import hashlib
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.unit.worker.dying_keeper import opened

from sandlot.worker.failpoints import Step

SCRIPT = Path(__file__).with_name("dying_keeper.py")
STEPS = (Step.ARTIFACT_STORED, Step.ARTIFACT_RECORDED, Step.ARTIFACT_FORGOTTEN)
ROUNDS = 10
ENDS_WITHIN_S = 60


async def check(folder: Path, printed: str) -> None:
    """After another start: each artifact is whole, each that was told of is there, and no file has no artifact."""
    lines = [line.split() for line in printed.splitlines() if line.count(" ") == 1]
    told = {artifact_id for what, artifact_id in lines if what == "kept"}
    deleted = {artifact_id for what, artifact_id in lines if what == "deletes"}
    artifacts = opened(folder)
    await artifacts.open()
    try:
        page = await artifacts.page("default", None, None, None, 1000)
        for artifact in page.artifacts:
            content = b"".join([piece async for piece in artifacts.read("default", artifact.id)])
            assert (len(content), hashlib.sha256(content).hexdigest()) == (artifact.size, artifact.sha256)
        assert told - deleted <= {artifact.id for artifact in page.artifacts}
        files = {path.name for path in (folder / "artifacts").rglob("*") if path.is_file()}
        assert files == {artifact.sha256 for artifact in page.artifacts}
    finally:
        await artifacts.close()


@pytest.mark.parametrize("step", STEPS)
async def test_killed_at_a_step(tmp_path: Path, step: Step) -> None:
    command = [sys.executable, str(SCRIPT), str(tmp_path), step.value]
    ended = subprocess.run(command, stdout=subprocess.PIPE, timeout=ENDS_WITHIN_S, check=False)
    assert ended.returncode == -signal.SIGKILL
    await check(tmp_path, ended.stdout.decode())


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
