"""Artifacts: keep files of a session; list, download and delete what was kept."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from sandlot.api.context import Service, check_parameters
from sandlot.api.edge.error_responses import PROBLEMS
from sandlot.api.edge.request_body import JsonRoute
from sandlot.api.responses.json import JSON, encode_json, json_response
from sandlot.api.responses.streams import buffered_response
from sandlot.api.v1.downloads import attachment_response
from sandlot.domain.artifacts.artifact import Artifact, ArtifactPage, KeptArtifacts
from sandlot.wire.artifacts.artifact_bodies import KeepArtifactsBody

SEND_TIMEOUT_S: Final = 60.0
_CONTENT: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        "description": "The content, with the artifact's own media type",
    }
}

router = APIRouter(prefix="/v1", tags=["artifacts"], route_class=JsonRoute, responses=PROBLEMS)


@router.post("/sessions/{session_id}/artifacts", response_model=KeptArtifacts)
async def keep_artifacts(service: Service, session_id: str, body: KeepArtifactsBody) -> Response:
    """Keep files of a session as they are now. They stay after the session's end.

    Only regular files in `/workspace` are kept; symbolic links are not followed. Sending this twice keeps a
    file twice only if it has changed. The answer names the paths that no file matched, and the files that
    were not kept.
    """
    kept = await service.keep_artifacts(session_id, body.paths)
    return buffered_response(encode_json(kept), JSON, timeout_s=SEND_TIMEOUT_S)


@router.get("/artifacts", response_model=ArtifactPage)
async def list_artifacts(
    service: Service,
    request: Request,
    session: Annotated[str | None, Query(description="Return only this session's artifacts.")] = None,
    thread: Annotated[str | None, Query(description="Return only those of this conversation.")] = None,
    after: Annotated[str | None, Query(description="The `next` value of the previous page.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000, description="Maximum number of entries per page.")] = 100,
) -> Response:
    """List your tenant's artifacts, oldest first."""
    check_parameters(request, ("session", "thread", "after", "limit"))
    page = await service.list_artifacts(session_id=session, thread=thread, after=after, limit=limit)
    return buffered_response(encode_json(page), JSON, timeout_s=SEND_TIMEOUT_S)


@router.get("/artifacts/{artifact_id}", response_model=Artifact)
async def get_artifact(service: Service, artifact_id: str) -> Response:
    """Return what is known of an artifact: its path, size and digest."""
    return json_response(await service.get_artifact(artifact_id))


@router.get("/artifacts/{artifact_id}/content", response_class=Response, responses=_CONTENT)
async def read_artifact(service: Service, artifact_id: str) -> Response:
    """Download an artifact."""
    artifact = await service.get_artifact(artifact_id)
    return await attachment_response(
        service.read_artifact(artifact_id),
        artifact.media_type,
        artifact.path.rpartition("/")[2],
        length=artifact.size,
        ranges=False,
    )


@router.delete("/artifacts/{artifact_id}", status_code=204)
async def delete_artifact(service: Service, artifact_id: str) -> Response:
    """Delete an artifact."""
    await service.delete_artifact(artifact_id)
    return Response(status_code=204)
