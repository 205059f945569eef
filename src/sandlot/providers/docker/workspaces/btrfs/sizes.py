"""How much workspaces use, kept in step with their snapshots, and how much room the file system has.

See quotas.py for what a credit is.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Final

import structlog

from sandlot.domain.errors import StorageFull
from sandlot.providers.docker.workspaces.btrfs import quotas, subvolumes
from sandlot.providers.docker.workspaces.btrfs.quotas import Charge
from sandlot.providers.docker.workspaces.btrfs.subvolumes import call, opened, request

log = structlog.get_logger("sandlot.workspaces")

# Left to the running sandboxes: below this, no snapshots and no copies.
RESERVED_BYTES: Final = 64 * 1024 * 1024
FREED_WITHIN_S: Final = 5.0
_LOOK_EVERY_S: Final = 0.02
# Syncs are for everybody on the file system, so nobody may ask for them all the time.
PAUSE_S: Final = 0.5
_SYNC: Final = request(0, 8, 0)
_TREE_SEARCH: Final = request(3, 17, 4096)
_ROOT_TREE: Final = 1
# The items of subvolumes that are deleted, but not freed yet.
_ORPHANS: Final = 2**64 - 5
_ORPHAN_KEY: Final = 48


class Sizes:
    """``quota``: how large each workspace may grow. ``on`` is False where there are no quotas."""

    def __init__(self, quota: int | None) -> None:
        self.quota = quota
        self.on = False

    def charge(self, path: Path) -> Charge | None:
        if not self.on:
            return None
        with subvolumes.opened(path) as subvolume:
            return quotas.charge(subvolume, subvolumes.info(subvolume).id)

    def set_credit(self, path: Path, credit: int) -> None:
        self._limit(path, self.quota, credit)

    def limit(self, path: Path, quota: int) -> None:
        """Limit a subvolume that has a quota of its own."""
        self._limit(path, quota, 0)

    def limit_again(self, path: Path) -> None:
        """Apply the quota, which may have changed."""
        charge = self.charge(path)
        if charge is not None and charge.limit != quotas.limit_of(self.quota, charge.credit):
            self.set_credit(path, charge.credit)

    def note_size(self, snapshot: Path, size: int) -> None:
        """Note how large a snapshot's files are, for the workspaces that inherit them."""
        self._limit(snapshot, None, -size)

    def inherit(self, snapshot: Path, workspace: Path) -> None:
        """Limit a new workspace with a snapshot's files."""
        if (charge := self.charge(snapshot)) is not None:
            self.set_credit(workspace, charge.credit)

    def _limit(self, path: Path, quota: int | None, credit: int) -> None:
        if self.on:
            with subvolumes.opened(path) as subvolume, subvolumes.opened(path.parent) as folder:
                quotas.limit(folder, subvolumes.info(subvolume).id, quota, credit)


class Space:
    """How much room there is. ``root``: a folder on the file system. ``tidy``: deletes what is of no use.

    The kernel frees a deleted subvolume after its next commit, which may be 30 s away, and its blocks are of
    use after one more. So where room is short, the store asks for both.
    """

    def __init__(self, root: Path, tidy: Callable[[], None]) -> None:
        self._root = root
        self._tidy = tidy
        self._freeing = Lock()
        self._again_at = 0.0

    @property
    def is_short(self) -> bool:
        status = os.statvfs(self._root)
        return status.f_bavail * status.f_frsize < RESERVED_BYTES

    def check(self) -> None:
        """Raise ``StorageFull`` if room is short, also once what was deleted is freed. Blocks meanwhile."""
        if self.is_short and not self._free():
            raise StorageFull(
                "The workspace storage is full. Delete snapshots or sessions, or ask the operator for more "
                "space."
            )

    def deleted(self) -> None:
        """Let the kernel free soon what was deleted, if room is short. Commands wait for it."""
        if self.is_short:
            with opened(self._root) as descriptor:
                call(descriptor, _SYNC, b"")

    def _free(self) -> bool:
        """Wait until what was deleted is freed. One thread does, and the others go on without."""
        if not self._freeing.acquire(blocking=False):
            return False
        try:
            began = time.monotonic()
            if began < self._again_at:
                return False
            try:
                self._tidy()
            except OSError as error:  # the caller's own call may succeed all the same
                log.warning("cannot delete old files to make room; will retry", error=str(error))
            with opened(self._root) as descriptor:
                call(descriptor, _SYNC, b"")  # wakes the kernel's cleaner
                while _has_deleted(descriptor) and time.monotonic() < began + FREED_WITHIN_S:
                    time.sleep(_LOOK_EVERY_S)
                call(descriptor, _SYNC, b"")
            self._again_at = time.monotonic() + PAUSE_S
            return not self.is_short
        finally:
            self._freeing.release()


def _has_deleted(filesystem: int) -> bool:
    """Whether subvolumes are deleted, but not freed."""
    search = struct.pack(
        "=QQQQQQQIIII32x",
        *(_ROOT_TREE, _ORPHANS, _ORPHANS, 0, 2**64 - 1, 0, 2**64 - 1),
        *(_ORPHAN_KEY, _ORPHAN_KEY, 1, 0),
    )
    answer = call(filesystem, _TREE_SEARCH, search.ljust(4096, b"\0"))
    return bool(struct.unpack_from("=I", answer, 64)[0])
