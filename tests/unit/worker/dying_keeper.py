"""Keeps and deletes artifacts until it is killed: `python dying_keeper.py FOLDER [STEP]`.

With a step, it kills itself there. It prints a line for each artifact that is kept, and one before it deletes one.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from sandlot.domain.session import Session
from sandlot.domain.workspaces.objects.locations import parse_location
from sandlot.testing.fake.files import FakeFiles
from sandlot.testing.fake.tree import Tree
from sandlot.worker import failpoints
from sandlot.worker.artifacts.artifacts import Artifacts
from sandlot.worker.artifacts.options import ArtifactOptions
from sandlot.worker.workspaces.objects.options import ObjectOptions
from sandlot.worker.workspaces.objects.storage import ObjectStorage

BYTES = 300_000


def storage_of(folder: Path) -> ObjectStorage:
    return ObjectStorage(ObjectOptions(parse_location(f"file://{folder}/objects")))


def opened(folder: Path, objects: ObjectStorage) -> Artifacts:
    nobody: Any = SimpleNamespace()
    artifacts = Artifacts(folder, ArtifactOptions(), nobody, worker_id="dying", min_free_bytes=0)
    artifacts.copy_to(objects)
    return artifacts


async def main() -> None:
    folder = Path(sys.argv[1])
    if len(sys.argv) > 2:
        wanted = failpoints.Step(sys.argv[2])

        def die(step: failpoints.Step) -> None:
            if step is wanted:
                os.kill(os.getpid(), signal.SIGKILL)

        failpoints.hook = die
    artifacts = opened(folder, storage_of(folder))
    await artifacts.open()
    tree = Tree()
    session = Session("ses_" + "0" * 32, "base", 0.0, 0.0, artifacts=("a", "b"))
    live_session: Any = SimpleNamespace(
        session=session,
        sandbox=SimpleNamespace(files=FakeFiles(lambda: tree)),
        unresponsive_since=None,
    )
    known: set[str] = set()
    number = 0
    while True:
        number += 1
        for name in ("a", "b"):
            data = f"{name}{number}".encode() * BYTES
            tree.write(f"/workspace/{name}", data[:BYTES], mode=None, parents=True, exclusive=False)
        await artifacts.keep_declared(live_session)
        page = await artifacts.page("default", None, None, None, 100)
        for artifact in page.artifacts:
            if artifact.id not in known:
                known.add(artifact.id)
                print(f"kept {artifact.id}", flush=True)
        for artifact in page.artifacts[:-3]:
            print(f"deletes {artifact.id}", flush=True)
            await artifacts.delete("default", artifact.id)


if __name__ == "__main__":
    asyncio.run(main())
