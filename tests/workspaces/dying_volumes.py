"""What a worker asks of a store of Docker volumes, in a process that dies where it is told to.

python -m tests.workspaces.dying_volumes OWNER FOLDER WORKSPACE SNAPSHOT COPY [STEP]
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from sandlot.providers.docker.engine import Engine
from sandlot.providers.docker.workspaces.volumes import steps
from sandlot.providers.docker.workspaces.volumes.store import VolumeStore


async def main(
    owner: str, folder: Path, workspace_id: str, snapshot_id: str, copy_id: str, step: str
) -> None:
    def die(reached: steps.VolumeStep) -> None:
        if reached.value == step:
            os.kill(os.getpid(), signal.SIGKILL)

    steps.hook = die
    engine = Engine()
    store = VolumeStore(engine, owner, folder)
    try:
        await store.open()
        await store.snapshot(workspace_id, snapshot_id)
        await store.clone(snapshot_id, copy_id)
    finally:
        await engine.close()


if __name__ == "__main__":
    _, owner, folder, workspace, snapshot, copy, *step = sys.argv
    asyncio.run(main(owner, Path(folder), workspace, snapshot, copy, step[0] if step else ""))
