"""The calls of ``FakeService`` about artifacts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final

from sandlot.domain.artifacts.artifact import Artifact, ArtifactPage, KeptArtifacts
from sandlot.domain.artifacts.listing import page_among
from sandlot.domain.artifacts.patterns import check_patterns
from sandlot.domain.callers.principal import Principal
from sandlot.domain.errors import InvalidRequest
from sandlot.testing.fake.artifacts.store import FakeArtifacts
from sandlot.testing.fake.computer import FakeComputer
from sandlot.testing.fake.records import Record

PIECE_BYTES: Final = 64 * 1024


class ArtifactCalls:
    _principal: Principal
    _artifacts: FakeArtifacts

    def _record(self, session_id: str) -> Record:
        raise NotImplementedError

    def _computer(self, session_id: str, *, starts_work: bool = False) -> FakeComputer:
        raise NotImplementedError

    async def keep_artifacts(self, session_id: str, paths: Sequence[str]) -> KeptArtifacts:
        patterns = check_patterns(paths)
        self._record(session_id)
        if not patterns:
            raise InvalidRequest("Name the files to keep, such as 'out/*.png'.")
        tree = self._computer(session_id, starts_work=True).tree
        return self._artifacts.keep(self._record(session_id).session, tree, patterns)

    def _keep_declared(self, record: Record) -> None:
        """Keep the files that a session declared, before its computer goes."""
        computer, patterns = record.computer, record.session.artifacts
        if computer is not None and not computer.frozen and patterns:
            self._artifacts.keep(record.session, computer.tree, patterns)

    async def list_artifacts(
        self,
        *,
        session_id: str | None = None,
        thread: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> ArtifactPage:
        artifacts = self._artifacts.of(self._principal.tenant, session_id, thread)
        return page_among(artifacts, after=after, limit=limit)

    async def get_artifact(self, artifact_id: str) -> Artifact:
        return self._artifacts.get(self._principal.tenant, artifact_id)

    async def read_artifact(self, artifact_id: str) -> AsyncIterator[bytes]:
        artifact = self._artifacts.get(self._principal.tenant, artifact_id)
        content = self._artifacts.content(artifact)
        for begin in range(0, len(content), PIECE_BYTES):
            yield content[begin : begin + PIECE_BYTES]

    async def delete_artifact(self, artifact_id: str) -> None:
        self._artifacts.delete(self._principal.tenant, artifact_id)
