"""Artifacts in a fleet. An artifact is on the worker that kept it, and its id says which one that is."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final

from sandlot.domain.artifacts.artifact import Artifact, ArtifactPage, KeptArtifacts, no_artifact_error
from sandlot.domain.artifacts.listing import check_listing, merged
from sandlot.domain.errors import SandlotError, Unavailable, Unsupported
from sandlot.domain.ids import artifact_tag
from sandlot.fleet.coordinator.asked_workers import share_of
from sandlot.fleet.coordinator.calls.forwarded import ForwardedCalls
from sandlot.fleet.coordinator.worker_links import WorkerLink, as_client_error, watched
from sandlot.fleet.directory.contract import WorkerRef, WorkerState

# Seconds for a worker to have all files on its disk.
KEEP_S: Final = 600.0


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
        workers = await (asked.all() if session_id is None else asked.with_session(session_id))
        each = share_of(limit, workers)

        async def of_one(link: WorkerLink) -> ArtifactPage:
            try:
                return await link.list_artifacts(
                    session_id=session_id, thread=thread, after=after, limit=each
                )
            except Unsupported:
                return ArtifactPage(())  # the worker runs an older version, which keeps none

        return merged(await asked.ask(workers, self._principal, of_one), limit)

    async def get_artifact(self, artifact_id: str) -> Artifact:
        worker = await self._worker_of_artifact(artifact_id)
        if worker is None:
            raise no_artifact_error(artifact_id)
        try:
            link = await self._links.to(worker, self._principal)
            async with watched(link, self._options.call_timeout_s):
                return await link.get_artifact(artifact_id)
        except SandlotError as error:
            raise as_client_error(worker.id, error) from error

    async def read_artifact(self, artifact_id: str) -> AsyncGenerator[bytes, None]:
        worker = await self._worker_of_artifact(artifact_id)
        if worker is None:
            raise no_artifact_error(artifact_id)
        try:
            link = await self._links.to(worker, self._principal)
            async with aclosing(link.read_artifact(artifact_id)) as pieces:
                async for piece in pieces:
                    yield piece
        except SandlotError as error:
            raise as_client_error(worker.id, error) from error

    async def delete_artifact(self, artifact_id: str) -> None:
        worker = await self._worker_of_artifact(artifact_id)
        if worker is None:
            return
        try:
            link = await self._links.to(worker, self._principal)
            async with watched(link, self._options.call_timeout_s):
                await link.delete_artifact(artifact_id)
        except SandlotError as error:
            raise as_client_error(worker.id, error) from error

    async def _worker_of_artifact(self, artifact_id: str) -> WorkerRef | None:
        """The worker that has this artifact, if there is such an artifact. None: there is none."""
        tag = artifact_tag(artifact_id)
        if tag is None:
            raise no_artifact_error(artifact_id)
        worker = await self._parts.asked.tagged(tag)
        if worker is not None and worker.state is WorkerState.GONE:
            raise Unavailable(
                f"Worker {worker.id}, which has the artifact, does not answer. Once it is back, retry.",
                retryable=False,
                details={"reason": "worker_gone", "worker_id": worker.id},
            )
        return worker
