"""The artifact methods of ``HttpService``.

Files are kept by the session's worker, so that call may go straight to it. Calls about an artifact go to the
server: its session may have ended, and only the server knows which worker has it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Final

import msgspec

from sandlot.client.http.calls import ServiceCalls
from sandlot.client.http.paths import session_path
from sandlot.client.http.transport.request import encode, query, segment
from sandlot.domain.artifacts.artifact import Artifact, ArtifactPage, KeptArtifacts
from sandlot.domain.errors import NotFound, Unsupported
from sandlot.wire.artifacts.artifact_bodies import KeepArtifactsBody

# Seconds to wait for an answer: the server answers once all files are on its disk.
KEEP_READ_S: Final = 600.0

_ARTIFACT: Final = msgspec.json.Decoder(Artifact)
_PAGE: Final = msgspec.json.Decoder(ArtifactPage)
_KEPT: Final = msgspec.json.Decoder(KeptArtifacts)


def artifact_path(artifact_id: str) -> str:
    return "/v1/artifacts/" + segment(artifact_id)


class ArtifactOperations(ServiceCalls):
    async def keep_artifacts(self, session_id: str, paths: Sequence[str]) -> KeptArtifacts:
        calls = self._calls_to(session_id)
        answer = await calls.call(
            "POST",
            session_path(session_id) + "/artifacts",
            encode(KeepArtifactsBody(list(paths))),
            # What was kept and has not changed is not kept again.
            repeatable=True,
            read_timeout_s=KEEP_READ_S,
        )
        kept: KeptArtifacts = calls.decode(_KEPT, answer)
        return kept

    async def list_artifacts(
        self,
        *,
        session_id: str | None = None,
        thread: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> ArtifactPage:
        path = "/v1/artifacts" + query(session=session_id, thread=thread, after=after, limit=limit)
        try:
            answer = await self._get(path)
        except NotFound as error:
            raise Unsupported(
                f"The server at {self.url} is an older version, which keeps no artifacts. Update it."
            ) from error
        page: ArtifactPage = self._connection.decode(_PAGE, answer)
        return page

    async def get_artifact(self, artifact_id: str) -> Artifact:
        artifact: Artifact = self._connection.decode(_ARTIFACT, await self._get(artifact_path(artifact_id)))
        return artifact

    async def read_artifact(self, artifact_id: str) -> AsyncGenerator[bytes, None]:
        response = await self._connection.open("GET", artifact_path(artifact_id) + "/content")
        async with self._connection.reading(response):
            async for piece in response.aiter_raw():
                yield piece

    async def delete_artifact(self, artifact_id: str) -> None:
        await self._call("DELETE", artifact_path(artifact_id), repeatable=True)
