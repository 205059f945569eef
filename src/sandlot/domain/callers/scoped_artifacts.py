"""The artifact calls of ``ScopedService``. Artifacts are files, so all of them need the scope for files."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

from sandlot.domain.artifacts.artifact import Artifact, ArtifactPage, KeptArtifacts
from sandlot.domain.callers.principal import Scope
from sandlot.domain.service import SandboxService


class ScopedArtifacts:
    _service: SandboxService
    _require: Callable[[Scope], None]

    async def keep_artifacts(self, session_id: str, paths: Sequence[str]) -> KeptArtifacts:
        self._require(Scope.FILES)
        return await self._service.keep_artifacts(session_id, paths)

    async def list_artifacts(
        self,
        *,
        session_id: str | None = None,
        thread: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> ArtifactPage:
        self._require(Scope.FILES)
        return await self._service.list_artifacts(
            session_id=session_id, thread=thread, after=after, limit=limit
        )

    async def get_artifact(self, artifact_id: str) -> Artifact:
        self._require(Scope.FILES)
        return await self._service.get_artifact(artifact_id)

    def read_artifact(self, artifact_id: str) -> AsyncIterator[bytes]:
        self._require(Scope.FILES)
        return self._service.read_artifact(artifact_id)

    async def delete_artifact(self, artifact_id: str) -> None:
        self._require(Scope.FILES)
        await self._service.delete_artifact(artifact_id)
