"""Copies: saves artifacts in object storage in the background, and gets them back.

An artifact is on the disk of the worker that kept it. Its copy, one record and the chunks of its content, is
in the tenant's folder of the object storage, where every worker finds it by its id. The worker's own records
are the queue of what to save and delete there; a failure is tried again, and never fails an artifact.

- While the worker is there, it alone answers for its artifacts, from its disk.
- A worker that begins with a new disk takes over the records that its id has in object storage. Their
  contents stay there until somebody reads them.
- For a worker that is gone, any other one answers: it reads, lists and deletes the copies. It takes nothing
  over, so nobody has to agree on an heir, and no artifact is listed twice. A deletion leaves a note, in case
  the worker that is gone comes back with its disk.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from typing import TYPE_CHECKING, Final

import structlog

from sandlot.domain.artifacts.artifact import Artifact
from sandlot.domain.errors import StorageProblem
from sandlot.domain.ids import artifact_tag
from sandlot.worker.artifacts.contents import Contents
from sandlot.worker.artifacts.copy_records import Copy
from sandlot.worker.artifacts.records import ArtifactRecords
from sandlot.worker.failpoints import Step, reached
from sandlot.worker.retried_work import RetriedWork

if TYPE_CHECKING:  # it needs libraries that other workers do not
    from sandlot.worker.workspaces.objects.artifacts.storage import SavedArtifacts

log = structlog.get_logger("sandlot.artifacts")

# How many artifacts are saved or deleted at once, and how many records are read at once.
AT_ONCE: Final = 2
READ_AT_ONCE: Final = 100
# Seconds between two looks for deletions that other workers have made.
HEAR_EVERY_S: Final = 60.0
# Space is freed so often, and first so long after the start. What nobody needs is found by one round, and
# deleted a day later: with two rounds a day, that is no later than two days.
COLLECT_EVERY_S: Final = 12 * 3600.0
COLLECT_FIRST_S: Final = 3600.0
# Workers delete their own artifacts that are too old. Others do that so much later.
OTHERS_LATER_S: Final = 24 * 3600.0


class Copies:
    """``tag``: of this worker. ``delete``: deletes an artifact of this worker.

    Call ``start``, and ``close`` before the records and the storage are closed.
    """

    def __init__(
        self,
        saved: SavedArtifacts,
        records: ArtifactRecords,
        contents: Contents,
        tag: str,
        max_age_s: float,
        delete: Callable[[str, str], Awaitable[None]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._saved = saved
        self._records = records
        self._contents = contents
        self._tag = tag
        self._max_age_s = max_age_s
        self._delete_here = delete
        self._clock = clock
        self._searched = False
        self._hear_at = 0.0
        self._collect_at = clock() + COLLECT_FIRST_S
        self._work = RetriedWork(
            "copies",
            records.copies_to_do,
            self._do,
            before=self._prepare,
            after=self._collect,
            at_once=AT_ONCE,
            clock=clock,
        )
        self.close = self._work.close
        self.wake = self._work.wake
        records.has_copies = True

    async def start(self) -> None:
        self._searched = await self._records.was_searched(self._tag)
        await self._records.want_copies()
        self._work.start()

    @property
    def problems(self) -> Sequence[str]:
        """What an operator should know."""
        if self._work.problem is not None:
            return (f"Artifacts are not saved in object storage: {self._work.problem}",)
        if (latest := self._work.latest_failure) is None:
            return ()
        return (f"Artifacts not saved in object storage yet: {len(self._work.failures)}. {latest}",)

    # --- what other workers have saved ----------------------------------------------------------

    async def find(self, tenant: str, artifact_id: str) -> Artifact | None:
        """An artifact that this worker has no record of; ``None`` if it is not in object storage."""
        if not await self._may_be_there(artifact_id):
            return None
        return await self._saved.find(tenant, artifact_id)

    def read(self, artifact: Artifact) -> AsyncGenerator[bytes, None]:
        return self._saved.read(artifact.tenant, artifact.id)

    async def delete(self, tenant: str, artifact_id: str) -> None:
        """Delete an artifact that this worker has no record of."""
        if await self._may_be_there(artifact_id):
            await self._saved.delete_for(tenant, artifact_id)

    async def page(
        self,
        tenant: str,
        session_id: str | None,
        thread: str | None,
        after: str,
        limit: int,
        without: Collection[str],
    ) -> Sequence[Artifact]:
        """What workers have saved, except those with the tags ``without``. Oldest first."""
        return await self._saved.page(tenant, session_id, thread, after, limit, without)

    async def _may_be_there(self, artifact_id: str) -> bool:
        if artifact_tag(artifact_id) == self._tag and self._searched:
            return False  # this worker would have a record of it
        return await self._records.copy_of(artifact_id) is None  # else it is about to be deleted

    # --- the queue ------------------------------------------------------------------------------

    async def _prepare(self) -> None:
        await self._saved.objects.open()
        if not self._searched:
            await self._take_over()
        if self._clock() >= self._hear_at:
            for tenant, artifact_id in await self._saved.deleted_elsewhere(self._tag):
                await self._delete_here(tenant, artifact_id)
                await self._saved.heard_of_deletion(artifact_id)
            self._hear_at = self._clock() + HEAR_EVERY_S

    async def _do(self, copy: Copy) -> None:
        artifact = copy.artifact
        if copy.deleting:
            await self._saved.delete(artifact)
            reached(Step.COPY_DELETED)
            await self._records.forget_copy(artifact.id)
            return
        if await self._records.find(artifact.tenant, artifact.id) is None:
            return  # it was deleted a moment ago
        file = self._contents.file(artifact.tenant, artifact.sha256)
        sent = await self._saved.save(artifact, file)
        reached(Step.COPY_PUBLISHED)
        await self._records.set_saved(artifact.id, self._clock())
        reached(Step.COPY_RECORDED)
        log.info("saved an artifact in object storage", artifact=artifact.id, sent=sent, of=artifact.size)

    async def _take_over(self) -> None:
        """Record the artifacts that this worker has saved with an earlier disk. Done once for each disk."""
        for tenant in await self._saved.tenants():
            marks = await self._saved.marks(tenant, self._tag)
            for start in range(0, len(marks), READ_AT_ONCE):
                ids = [mark.artifact for mark in marks[start : start + READ_AT_ONCE]]
                found = await asyncio.gather(*(self._readable(tenant, name) for name in ids))
                await self._records.take_over([one for one in found if one is not None], self._clock())
                reached(Step.COPIES_FOUND)
            if marks:
                log.info("took artifacts over from object storage", tenant=tenant, count=len(marks))
        await self._records.set_searched(self._tag)
        self._searched = True

    async def _readable(self, tenant: str, artifact_id: str) -> Artifact | None:
        try:
            return await self._saved.find(tenant, artifact_id)
        except StorageProblem as error:
            if not error.details.get("damaged"):
                raise
            log.warning("a saved artifact is damaged", artifact=artifact_id, error=error.message)
            return None

    async def _collect(self) -> None:
        if self._clock() >= self._collect_at:
            self._collect_at = self._clock() + COLLECT_EVERY_S
            before = self._clock() - self._max_age_s - OTHERS_LATER_S
            collected = await self._saved.objects.collect(artifacts_before=before)
            log.info("freed object storage", objects=collected.deleted, bytes=collected.freed_bytes)
