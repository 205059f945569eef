"""Artifacts in a fleet. An artifact is on the worker that kept it, and its id says which one that is.

If that worker is gone, another one answers for it from object storage: for each tenant the same one, as long
as it is there, because it keeps the tenant's list for a moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Final

from sandlot.domain.artifacts.artifact import Artifact, ArtifactPage, KeptArtifacts, no_artifact_error
from sandlot.domain.artifacts.listing import OBJECT_STORAGE, check_listing, merged, with_saved
from sandlot.domain.errors import NotFound, SandlotError, Unavailable, Unsupported
from sandlot.domain.history.positions import worker_tag
from sandlot.domain.ids import artifact_tag
from sandlot.fleet.coordinator.asked_workers import share_of
from sandlot.fleet.coordinator.calls.forwarded import ForwardedCalls
from sandlot.fleet.coordinator.worker_links import WorkerLink, as_client_error, watched
from sandlot.fleet.directory.contract import WorkerRef, WorkerState

# Seconds for a worker to have all files on its disk.
KEEP_S: Final = 600.0
# Entries of a page that may have to be read from object storage.
SAVED_EACH: Final = 100


class ArtifactCalls(ForwardedCalls):
    async def keep_artifacts(self, session_id: str, paths: Sequence[str]) -> KeptArtifacts:
        async with self._worker_for(session_id, within_s=KEEP_S) as worker:
            return await worker.keep_artifacts(session_id, paths)

    async def list_artifacts(
        self,
        *,
        session_id: str | None = None,
        thread: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> ArtifactPage:
        check_listing(after, limit)
        asked = self._parts.asked
        known = await asked.all()
        workers = known if session_id is None else await asked.with_session(session_id)
        each = share_of(limit, workers)

        async def of_one(link: WorkerLink) -> ArtifactPage:
            try:
                return await link.list_artifacts(
                    session_id=session_id, thread=thread, after=after, limit=each
                )
            except Unsupported:
                return ArtifactPage(())  # the worker runs an older version, which keeps none

        async def of_gone(link: WorkerLink) -> ArtifactPage:
            present = [worker_tag(worker.id) for worker in known if worker.state is not WorkerState.GONE]
            return await link.list_saved_artifacts(
                session_id=session_id,
                thread=thread,
                after=after,
                limit=min(each, SAVED_EACH),
                without=present,
            )

        pages, saved = await asyncio.gather(
            asked.ask(workers, self._principal, of_one), self._of_gone_workers(of_gone)
        )
        return merged(with_saved(pages, gone_among(workers), saved), limit)

    async def _of_gone_workers(
        self, question: Callable[[WorkerLink], Awaitable[ArtifactPage]]
    ) -> Mapping[str, ArtifactPage | None]:
        """What workers that are gone have saved. Empty if there is no object storage."""
        asked = self._parts.asked
        worker = await asked.stand_in(self._tenant)
        if worker is None:
            return {}
        try:
            answers = await asked.ask([worker], self._principal, question)
        except Unsupported:
            return {}
        return {OBJECT_STORAGE: answers[worker.id]}

    async def get_artifact(self, artifact_id: str) -> Artifact:
        async with self._place_of(artifact_id) as place, watched(place.link, self._options.call_timeout_s):
            return await place.link.get_artifact(artifact_id)

    async def read_artifact(self, artifact_id: str) -> AsyncGenerator[bytes, None]:
        async with (
            self._place_of(artifact_id) as place,
            aclosing(place.link.read_artifact(artifact_id)) as pieces,
        ):
            async for piece in pieces:
                yield piece

    async def delete_artifact(self, artifact_id: str) -> None:
        async with self._place_of(artifact_id) as place, watched(place.link, self._options.call_timeout_s):
            if place.gone is not None:
                # What is not in object storage is only on the worker that is gone.
                await place.link.get_artifact(artifact_id)
            await place.link.delete_artifact(artifact_id)

    @asynccontextmanager
    async def _place_of(self, artifact_id: str) -> AsyncIterator[_Place]:
        """Where the artifact is, for one call, whose errors are translated."""
        tag = artifact_tag(artifact_id)
        if tag is None:
            raise no_artifact_error(artifact_id)
        owner = await self._parts.asked.tagged(tag)
        gone = owner if owner is not None and owner.state is WorkerState.GONE else None
        worker = owner if gone is None else None
        if worker is None:
            worker = await self._parts.asked.stand_in(self._tenant)
        if worker is None:
            raise no_artifact_error(artifact_id) if gone is None else _gone_error(gone)
        try:
            yield _Place(await self._links.to(worker, self._principal), gone)
        except NotFound as error:
            if gone is None:
                raise
            raise _gone_error(gone) from error
        except SandlotError as error:
            raise as_client_error(worker.id, error) from error


@dataclass(frozen=True, slots=True)
class _Place:
    """``gone``: the worker that kept it, if another one answers for it."""

    link: WorkerLink
    gone: WorkerRef | None


def gone_among(workers: Sequence[WorkerRef]) -> set[str]:
    return {worker.id for worker in workers if worker.state is WorkerState.GONE}


def _gone_error(worker: WorkerRef) -> Unavailable:
    return Unavailable(
        f"Worker {worker.id}, which has the artifact, is gone, and the artifact is not in object storage. "
        "Once the worker is back, retry.",
        retryable=False,
        details={"reason": "worker_gone", "worker_id": worker.id},
    )
