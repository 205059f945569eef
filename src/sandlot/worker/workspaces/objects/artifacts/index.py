"""Lists saved artifacts by their marks. What was read a moment ago is not read again."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final

import structlog

from sandlot.domain.artifacts.artifact import Artifact
from sandlot.domain.artifacts.saved import SavedMark, saved_marks
from sandlot.domain.errors import StorageProblem
from sandlot.worker.workspaces.objects.artifacts.recent import Recent
from sandlot.worker.workspaces.objects.artifacts.records import MARKS, find_saved
from sandlot.worker.workspaces.objects.bucket.chunks import ChunkStore
from sandlot.worker.workspaces.objects.bucket.transfers import Transfers

log = structlog.get_logger("sandlot.objects")

# How long a list of marks is used. What was saved or deleted since shows up after that.
FRESH_S: Final = 10.0
# Of one tenant and one worker. A worker keeps fewer of a tenant, unless its settings allow more.
MAX_MARKS: Final = 100_000
# What stays in memory: some tens of megabytes.
MAX_LISTS: Final = 64
MAX_ARTIFACTS: Final = 20_000


class SavedIndex:
    """Used from several threads."""

    def __init__(self) -> None:
        self._tags: Recent[str, Sequence[str]] = Recent(MAX_LISTS, FRESH_S)
        self._marks: Recent[tuple[str, str], Sequence[SavedMark]] = Recent(MAX_LISTS, FRESH_S)
        # An artifact never changes, so what was read of it stays true.
        self._artifacts: Recent[tuple[str, str], Artifact] = Recent(MAX_ARTIFACTS, FRESH_S)

    def page(
        self,
        store: ChunkStore,
        transfers: Transfers,
        tenant: str,
        wanted: Callable[[SavedMark], bool],
        limit: int,
        without: Collection[str],
    ) -> Sequence[Artifact]:
        """The first ``limit`` artifacts, oldest first. ``without``: tags of workers whose are left out."""
        marks = sorted(
            mark
            for tag in self.tags(store, tenant)
            if tag not in without
            for mark in self.marks(store, tenant, tag)
            if wanted(mark)
        )
        found: list[Artifact] = []
        at = 0
        while at < len(marks) and len(found) < limit:
            batch = marks[at : at + limit - len(found)]
            at += len(batch)
            found.extend(self._read(store, transfers, tenant, batch))
        return found

    def tags(self, store: ChunkStore, tenant: str) -> Sequence[str]:
        """Of the workers that have saved artifacts of the tenant."""
        folder = f"{store.keys.folder}/{MARKS}"
        return self._tags.get(tenant, lambda: store.bucket.folders(folder))

    def marks(self, store: ChunkStore, tenant: str, tag: str) -> Sequence[SavedMark]:
        return self._marks.get((tenant, tag), lambda: list_marks(store, tag))

    def forget(self, tenant: str, artifact_id: str, tag: str) -> None:
        """It was deleted."""
        self._artifacts.forget((tenant, artifact_id))
        self._marks.forget((tenant, tag))

    def _read(
        self, store: ChunkStore, transfers: Transfers, tenant: str, marks: Sequence[SavedMark]
    ) -> Iterator[Artifact]:
        known = {mark.artifact: self._artifacts.find((tenant, mark.artifact)) for mark in marks}
        reading = {
            name: transfers.fetch(lambda name=name: find_saved(store, name, tenant))  # type: ignore[misc]
            for name, artifact in known.items()
            if artifact is None
        }
        for name, artifact in known.items():
            if artifact is not None:
                yield artifact
                continue
            transfers.check()
            try:
                saved = reading[name].result()
            except StorageProblem as error:
                if not error.details.get("damaged"):
                    raise
                log.warning("a saved artifact is damaged", artifact=name, error=error.message)
                continue
            if saved is not None:  # else it is being saved, or was deleted
                self._artifacts.put((tenant, name), saved.artifact)
                yield saved.artifact


def list_marks(store: ChunkStore, tag: str) -> Sequence[SavedMark]:
    """Oldest first."""
    return saved_marks(_names(store, tag))


def _names(store: ChunkStore, tag: str) -> Iterator[str]:
    for count, found in enumerate(store.bucket.list(f"{store.keys.folder}/{MARKS}/{tag}")):
        if count >= MAX_MARKS:
            raise StorageProblem(
                f"A worker has more than {MAX_MARKS:,} artifacts of one tenant in object storage. Get them "
                "by their ids."
            )
        yield found.path.rpartition("/")[2]
