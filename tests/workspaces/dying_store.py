"""What a worker asks of a btrfs store, call by call, in a process that dies where it is told to.

    python -m tests.workspaces.dying_store FOLDER PROGRESS [STEP NUMBER]

A call that ended is noted in the file PROGRESS. The next process begins with the first that is not there, as a
worker repeats what it has not recorded as done.
"""

from __future__ import annotations

import asyncio
import io
import os
import signal
import sys
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from sandlot.domain.ids import first_workspace_of
from sandlot.providers.docker.workspaces.btrfs import steps
from sandlot.providers.docker.workspaces.btrfs.store import BtrfsStore
from sandlot.providers.docker.workspaces.contract import ImageFiles

OWNER = "test-dying"
SB1, SB2, SB3 = (f"sbx_{number:032x}" for number in (1, 2, 3))
W1, W2 = first_workspace_of(SB1), f"wsp_{0xFF:032x}"
S1, S2 = (f"snp_{number:032x}" for number in (1, 2))
V1, V2 = (f"vol_{number:032x}" for number in (1, 2))
UID = 0x7000_0001
NAMES = [f"file{number}" for number in range(10)]


async def _image() -> AsyncIterator[bytes]:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for name in ("sandbox/", "sandbox/workspace/"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(folder)
        for name in NAMES:
            member = tarfile.TarInfo(f"sandbox/workspace/{name}")
            member.size, member.mode = 1, 0o644
            tar.addfile(member, io.BytesIO(b"0"))
    yield content.getvalue()


IMAGE = ImageFiles("sha256:image", _image)


def write(folder: Path, version: int) -> None:
    for name in NAMES:
        (folder / name).write_text(str(version))


def calls(store: BtrfsStore, root: Path) -> list[Callable[[], Awaitable[object]]]:
    async def written(sandbox_id: str, version: int) -> None:
        write(root / "sandboxes" / sandbox_id / "parent" / "workspace", version)

    async def written_volume() -> None:
        write(root / "sandboxes" / SB1 / "parent" / "volumes" / "data", 4)

    async def imported() -> None:
        async with store.new_snapshot(S2) as folder:
            write(folder, 3)

    return [
        lambda: store.prepare(SB1, UID, IMAGE),
        lambda: written(SB1, 1),
        lambda: store.snapshot(W1, S1),
        lambda: written(SB1, 2),
        lambda: store.create_volume(V1, 64 * 1024 * 1024),
        lambda: store.create_volume(V2, 64 * 1024 * 1024),
        lambda: store.attach_volume(SB1, V1, "data", writable=True),
        written_volume,
        lambda: store.clone(S1, W2),
        store.spares.finish,
        lambda: store.prepare(SB2, UID, IMAGE),
        lambda: store.attach(SB2, W2),
        lambda: store.attach_volume(SB2, V1, "data", writable=False),
        lambda: store.release(SB1, {W1}),
        lambda: store.prepare(SB3, UID, IMAGE, W1),
        lambda: store.attach_volume(SB3, V1, "data", writable=True),
        imported,
        lambda: store.delete(V2),
        lambda: store.delete(S1),
        lambda: store.release(SB2),
    ]


async def main(folder: Path, progress: Path, step: str, number: int) -> None:
    left = number

    def die(reached: steps.StoreStep) -> None:
        nonlocal left
        left -= reached.value == step
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    steps.hook = die if step else None
    store = BtrfsStore(folder, OWNER, 64 * 1024 * 1024)
    await store.open()
    for index, call in enumerate(calls(store, folder / OWNER)):
        if index >= len(progress.read_bytes()):
            await call()
            with progress.open("ab") as file:
                file.write(b".")
    await store.close()


if __name__ == "__main__":
    _, where, noted, *rest = sys.argv
    asyncio.run(main(Path(where), Path(noted), *((rest[0], int(rest[1])) if rest else ("", 0))))
