"""What a collection must know of artifacts: their chunks are needed, and old ones go.

A worker deletes its own artifacts that are too old. Here those go whose worker is gone for good.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Final

from sandlot.domain.artifacts.saved import saved_marks
from sandlot.domain.ids import artifact_tag
from sandlot.worker.workspaces.objects.artifacts.records import (
    DELETED,
    MARKS,
    RECORDS,
    SavedArtifact,
    find_saved,
    record_name,
)
from sandlot.worker.workspaces.objects.bucket.bucket import Bucket
from sandlot.worker.workspaces.objects.bucket.chunks import ChunkStore
from sandlot.worker.workspaces.objects.bucket.transfers import Transfers

# A worker that is away for longer may show an artifact again that was deleted meanwhile.
NOTES_S: Final = 30 * 24 * 3600.0
_AHEAD: Final = 16


def all_saved(store: ChunkStore, transfers: Transfers) -> Iterator[SavedArtifact]:
    """Every saved artifact of a tenant. Raises if one cannot be read."""
    reading: deque[Future[SavedArtifact | None]] = deque()
    for listed in store.bucket.list(f"{store.keys.folder}/{RECORDS}"):
        name = listed.path.rpartition("/")[2]
        if artifact_tag(name) is not None:
            reading.append(transfers.fetch(lambda name=name: find_saved(store, name)))  # type: ignore[misc]
        if len(reading) >= _AHEAD and (saved := reading.popleft().result()) is not None:
            yield saved
    for future in reading:
        if (saved := future.result()) is not None:
            yield saved


def remove_old_artifacts(
    store: ChunkStore, transfers: Transfers, before: float | None, grace_s: float
) -> None:
    """Delete artifacts that were kept before this time, and marks whose artifact was deleted."""
    folder = store.keys.folder
    saved = {listed.path.rpartition("/")[2] for listed in store.bucket.list(f"{folder}/{RECORDS}")}
    records: list[str] = []
    marks: list[str] = []
    for listed in store.bucket.list(f"{folder}/{MARKS}"):
        transfers.check()
        for mark in saved_marks([listed.path.rpartition("/")[2]]):
            if before is not None and mark.created_at < before:
                records.append(f"{folder}/{record_name(mark.artifact)}")
                marks.append(listed.path)
            elif mark.artifact not in saved and listed.age_s >= grace_s:  # else it is being saved
                marks.append(listed.path)
    store.bucket.delete(records)
    store.bucket.delete(marks)


def remove_old_notes(bucket: Bucket) -> None:
    """Remove notes of deletions that their workers have never come back for."""
    bucket.delete([listed.path for listed in bucket.list(DELETED) if listed.age_s >= NOTES_S])
