"""The artifact calls of ``WorkerService``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from sandlot.domain.artifacts.artifact import Artifact, ArtifactPage, KeptArtifacts
from sandlot.domain.callers.principal import Principal
from sandlot.worker.artifacts.artifacts import Artifacts


class ArtifactCalls:
    _principal: Principal
    _artifacts: Artifacts

    async def keep_artifacts(self, session_id: str, paths: Sequence[str]) -> KeptArtifacts:
        return await self._artifacts.keep(self._principal, session_id, paths)

    async def list_artifacts(
        self,
        *,
        session_id: str | None = None,
        thread: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> ArtifactPage:
        return await self._artifacts.page(self._principal.tenant, session_id, thread, after, limit)

    async def get_artifact(self, artifact_id: str) -> Artifact:
        return await self._artifacts.get(self._principal.tenant, artifact_id)

    def read_artifact(self, artifact_id: str) -> AsyncIterator[bytes]:
        return self._artifacts.read(self._principal.tenant, artifact_id)

    async def delete_artifact(self, artifact_id: str) -> None:
        await self._artifacts.delete(self._principal.tenant, artifact_id)
