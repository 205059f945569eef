"""The files that images bring for new workspaces: each image's once, as a read-only subvolume."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import IO, Final

from sandlot.providers.docker.workspaces.btrfs import removing, subvolumes, trees
from sandlot.providers.docker.workspaces.btrfs.layout import Layout
from sandlot.providers.docker.workspaces.btrfs.mounts import FILES_UID
from sandlot.providers.docker.workspaces.btrfs.seeds import archives
from sandlot.providers.docker.workspaces.btrfs.sizes import Sizes
from sandlot.providers.docker.workspaces.btrfs.steps import StoreStep, reached
from sandlot.providers.docker.workspaces.contract import ImageFiles
from sandlot.providers.waiting import run_to_completion

# More images than this are not in use at once. A seed that is needed again is made again.
MAX_SEEDS: Final = 32
_SPOOL_BYTES: Final = 8 * 1024 * 1024


class Seeds:
    def __init__(self, layout: Layout, sizes: Sizes) -> None:
        self._layout = layout
        self._sizes = sizes
        self._making: dict[str, asyncio.Lock] = {}

    async def of(self, files: ImageFiles) -> Path:
        """The image's files, which are read from the engine the first time."""
        name = sha256(files.image_id.encode()).hexdigest()
        seed = self._layout.seed(name)
        async with self._making.setdefault(name, asyncio.Lock()):
            if not await asyncio.to_thread(seed.is_dir):
                with tempfile.SpooledTemporaryFile(max_size=_SPOOL_BYTES) as archive:
                    async for piece in files.read():
                        archive.write(piece)
                    archive.seek(0)
                    await run_to_completion(asyncio.to_thread(self._make, archive, seed))
        return seed

    def _make(self, archive: IO[bytes], seed: Path) -> None:
        with staged_tree(self._layout) as staged:
            with subvolumes.opened(staged) as folder:
                archives.fill(folder, archive)
            reached(StoreStep.SEED_FILLED)
            size = trees.size_of(staged)
            oldest_first = sorted(self._layout.seeds(), key=lambda path: path.stat().st_mtime)
            for old in oldest_first[: max(0, len(oldest_first) + 1 - MAX_SEEDS)]:
                removing.remove(old.parent, old.name)
            subvolumes.copy(staged, seed, read_only=True)
            self._sizes.note_size(seed, size or 0)
        reached(StoreStep.SEED_MADE)


@contextmanager
def staged_tree(layout: Layout) -> Iterator[Path]:
    """An empty subvolume to fill, which is removed at the end."""
    with layout.staged() as staged:
        with subvolumes.opened(staged.parent) as folder:
            subvolumes.create(folder, staged.name)
        os.chown(staged, FILES_UID, FILES_UID)
        staged.chmod(0o755)
        yield staged


def publish_tree(sizes: Sizes, staged: Path, snapshot: Path) -> None:
    """Make a filled subvolume a snapshot. Does nothing if the snapshot exists."""
    size = trees.size_of(staged)
    reached(StoreStep.IMPORT_FILLED)
    try:
        subvolumes.copy(staged, snapshot, read_only=True)
    except FileExistsError:
        return
    reached(StoreStep.IMPORT_PUBLISHED)
    sizes.note_size(snapshot, size or 0)
