"""Deletes the chunks of a tenant that no snapshot and no artifact needs any more.

The domain's ``garbage`` has the rules.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import msgspec
import structlog

from sandlot.domain.errors import StorageProblem
from sandlot.domain.workspaces.objects.garbage import Sorting, longest_save_s
from sandlot.worker.workspaces.objects.artifacts.leftovers import all_saved
from sandlot.worker.workspaces.objects.bucket.bucket import DELETE_AT_ONCE
from sandlot.worker.workspaces.objects.bucket.chunks import ChunkStore, place_of
from sandlot.worker.workspaces.objects.bucket.transfers import Transfers
from sandlot.worker.workspaces.objects.manifests.heads import find_head
from sandlot.worker.workspaces.objects.manifests.reading import read_part

log = structlog.get_logger("sandlot.objects")

# A collection that has not said so for this long is dead.
LOCK_S: Final = 900.0
_LOCK: Final = "collecting"


@dataclass(frozen=True, slots=True)
class Collected:
    """deleted: how many objects. freed_bytes: their size. condemned: how many the next collections delete."""

    deleted: int = 0
    freed_bytes: int = 0
    condemned: int = 0

    def __add__(self, other: Collected) -> Collected:
        return Collected(
            self.deleted + other.deleted,
            self.freed_bytes + other.freed_bytes,
            self.condemned + other.condemned,
        )


@dataclass(slots=True)
class Collection:
    """One collection. ``run`` blocks until it is done; ``None``: another one is at work."""

    store: ChunkStore
    transfers: Transfers
    grace_s: float
    clock: Callable[[], float] = time.time
    _token: bytes = field(default_factory=lambda: os.urandom(16))

    def run(self) -> Collected | None:
        bucket, folder = self.store.bucket, self.store.keys.folder
        there = bucket.find(f"{folder}/{_LOCK}")
        if there is not None and there.age_s < LOCK_S:
            return None
        self.store.write_object(_LOCK, self._token)
        try:
            return self._collect()
        finally:
            if self._has_lock():
                bucket.delete([f"{folder}/{_LOCK}"])

    def _collect(self) -> Collected | None:
        began = time.monotonic()
        condemned = self.store.condemned()
        needed = self._needed()
        sorting = Sorting(condemned, self.clock(), self.grace_s)
        sizes: dict[str, int] = {}
        folder = self.store.keys.folder
        for found in self.store.bucket.list(f"{folder}/chunks"):
            self.transfers.check()
            place = found.path.removeprefix(f"{folder}/")
            before = len(sorting.delete)
            sorting.see(place, needed=hash(place) in needed, age_s=found.age_s)
            if len(sorting.delete) > before:
                sizes[place] = found.size
        for start in range(0, len(sorting.delete), DELETE_AT_ONCE):
            # What was read of the snapshots is only good for so long.
            if time.monotonic() - began > max(longest_save_s(self.grace_s), 1.0) or not self._has_lock():
                raise StorageProblem("Freeing object storage took too long. The rest follows later.")
            batch = sorting.delete[start : start + DELETE_AT_ONCE]
            self.store.bucket.delete([f"{folder}/{place}" for place in batch])
        if sorting.next_condemned or condemned:
            self.store.write_object("condemned", msgspec.msgpack.encode(sorting.next_condemned))
        self.store.bucket.remove_leftovers(folder, max(self.grace_s, LOCK_S))
        return Collected(len(sorting.delete), sum(sizes.values()), len(sorting.next_condemned))

    def _needed(self) -> set[int]:
        """Hashes of the places of all chunks that are needed: a million take 60 MB. Two chunks with one hash
        keep each other, no more.
        """
        needed: set[int] = set()
        folder = self.store.keys.folder
        for found in self.store.bucket.list(f"{folder}/snapshots"):
            self.transfers.check()
            head = find_head(self.store, found.path.rpartition("/")[2])
            if head is None:  # deleted meanwhile
                continue
            for name in head.parts:
                place = hash(place_of(name))
                if place not in needed:
                    self.transfers.check()
                    needed.add(place)
                    needed.update(hash(place_of(chunk)) for chunk in read_part(self.store, name).chunks)
        for saved in all_saved(self.store, self.transfers):
            needed.update(hash(place_of(name)) for name in saved.chunks)
        return needed

    def _has_lock(self) -> bool:
        return self.store.read_object(_LOCK) == self._token
