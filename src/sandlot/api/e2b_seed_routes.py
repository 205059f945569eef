"""The ``/api`` interface, on the same service: whatever provider is named, Docker on this server is meant."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from sandlot.api.answers import answer
from sandlot.api.context import Service
from sandlot.api.file_contents import file_answer, program_answer
from sandlot.api.problems import PROBLEMS
from sandlot.api.seed_bodies import (
    WORKSPACE,
    ApiCodeBody,
    ApiCreateBody,
    ApiFileBody,
    ApiResultBody,
    ApiSessionBody,
    ApiWriteBody,
    ApiWrittenBody,
    CleanedBody,
    FilesBody,
    documented,
    files_answer,
    own_url,
    read_body,
    seed_session,
)
from sandlot.domain.budget import hold_at_least
from sandlot.domain.errors import InvalidRequest
from sandlot.domain.execution import ExecRequest
from sandlot.domain.files import FileType
from sandlot.domain.session import Session

PROVIDER: Final = "docker"
MAX_READ_BYTES: Final = 16 * 1024 * 1024
_PROVIDERS: Final = (None, "docker", "e2b")
# The program comes by stdin: an argument is at most 128 KiB.
_LANGUAGES: Final = {
    "python": ("python3", "-"),
    "python3": ("python3", "-"),
    "javascript": ("node", "-"),
    "node": ("node", "-"),
    "bash": ("bash", "-s"),
    "sh": ("sh", "-s"),
}

router = APIRouter(prefix="/api", tags=["seed-era"], responses=PROBLEMS)


def _body(session: Session, request: Request) -> ApiSessionBody:
    return ApiSessionBody(
        session_id=session.id,
        sandbox_id=session.sandbox_id,
        provider=PROVIDER,
        url=f"{own_url(request)}/api/sessions/{session.id}",
        environment=session.environment,
        status=session.state.value,
        created_at=session.created_at,
    )


@router.post(
    "/sessions", response_model=ApiSessionBody, openapi_extra=documented(ApiCreateBody, required=False)
)
async def api_create_session(service: Service, request: Request) -> Response:
    body = await read_body(request, ApiCreateBody)
    if body.provider not in _PROVIDERS:
        raise InvalidRequest("provider must be docker or e2b")
    return answer(_body(await seed_session(service, body.environment, None), request))


@router.get("/sessions/{session_id}", response_model=ApiSessionBody)
async def api_get_session(service: Service, request: Request, session_id: str) -> Response:
    return answer(_body(await service.get_session(session_id), request))


@router.delete("/sessions/{session_id}", response_model=CleanedBody)
async def api_delete_session(service: Service, session_id: str) -> Response:
    await service.delete_session(session_id)
    return answer(CleanedBody())


@router.post("/e2b/execute", response_model=ApiResultBody, openapi_extra=documented(ApiCodeBody))
async def api_execute_code(service: Service, request: Request) -> Response:
    body = await read_body(request, ApiCodeBody)
    argv = _LANGUAGES.get(body.language.lower())
    if argv is None:
        raise InvalidRequest(f"language must be one of {', '.join(sorted(_LANGUAGES))}")
    asked = ExecRequest(argv=argv, stdin=True, timeout_s=body.timeout)
    ran = await service.execute(body.session_id, asked, body.code.encode())
    hold_at_least(len(ran.stdout) + len(ran.stderr))
    return program_answer(ran)


@router.get("/e2b/files/{session_id}", response_model=FilesBody | ApiFileBody)
async def api_read_files(
    service: Service, session_id: str, path: Annotated[str, Query(min_length=1)] = WORKSPACE
) -> Response:
    """The files of a folder, or the content of a file."""
    files = service.files(session_id)
    entry = await files.stat(path)
    if entry.type is FileType.DIRECTORY:
        return await files_answer(service, session_id, path)
    # Before it is read; one without a size, as in /proc, may have as much as is read at all.
    most = min(entry.size or MAX_READ_BYTES, MAX_READ_BYTES)
    hold_at_least(most)
    return file_answer(path, await files.read_bytes(path, max_bytes=most))


@router.post("/e2b/files", response_model=ApiWrittenBody, openapi_extra=documented(ApiWriteBody))
async def api_write_file(service: Service, request: Request) -> Response:
    body = await read_body(request, ApiWriteBody)
    entry = await service.files(body.session_id).write(body.path, body.content.encode())
    return answer(ApiWrittenBody(entry.path))
