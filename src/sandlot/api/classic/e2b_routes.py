"""The ``/api`` routes, on the same service. ``wire/former_names.py`` says what a provider's name means."""

from __future__ import annotations

from typing import Annotated, Final

import structlog
from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from sandlot.api.classic.bodies import (
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
    body_schema,
    classic_session,
    files_response,
    known_tiers,
    read_body,
    server_url,
)
from sandlot.api.classic.file_contents import code_result_response, file_content_response
from sandlot.api.context import Service
from sandlot.api.edge.error_responses import PROBLEMS
from sandlot.api.responses.json import json_response
from sandlot.domain.artifacts.artifact import MAX_FILES, Artifact
from sandlot.domain.artifacts.generated import FOLDER, generated
from sandlot.domain.capacity.budget import hold_at_least
from sandlot.domain.errors import FileProblem, Forbidden, InvalidRequest, SandlotError
from sandlot.domain.execution import ExecRequest
from sandlot.domain.files import FileEntry, FileType
from sandlot.domain.service import SandboxService
from sandlot.domain.session import Session
from sandlot.wire.former_names import provider_of

log = structlog.get_logger("sandlot.api")

MAX_READ_BYTES: Final = 16 * 1024 * 1024
# The program goes through stdin, because an argument is limited to 128 KiB.
_LANGUAGES: Final = {
    "python": ("python3", "-"),
    "python3": ("python3", "-"),
    "javascript": ("node", "-"),
    "node": ("node", "-"),
    "bash": ("bash", "-s"),
    "sh": ("sh", "-s"),
}

router = APIRouter(prefix="/api", tags=["classic"], responses=PROBLEMS)


async def _session_body(service: SandboxService, session: Session, request: Request) -> ApiSessionBody:
    tiers = await known_tiers(service)
    return ApiSessionBody(
        session_id=session.id,
        sandbox_id=session.sandbox_id,
        provider=provider_of(tiers.get(session.environment)),
        url=f"{server_url(request)}/api/sessions/{session.id}",
        environment=session.environment,
        status=session.state.value,
        created_at=session.created_at,
    )


@router.post(
    "/sessions", response_model=ApiSessionBody, openapi_extra=body_schema(ApiCreateBody, required=False)
)
async def api_create_session(service: Service, request: Request) -> Response:
    """Create a session."""
    body = await read_body(request, ApiCreateBody)
    session = await classic_session(service, body.environment, None, body.provider)
    return json_response(await _session_body(service, session, request))


@router.get("/sessions/{session_id}", response_model=ApiSessionBody)
async def api_get_session(service: Service, request: Request, session_id: str) -> Response:
    """Return a session."""
    session = await service.get_session(session_id)
    return json_response(await _session_body(service, session, request))


@router.delete("/sessions/{session_id}", response_model=CleanedBody)
async def api_delete_session(service: Service, session_id: str) -> Response:
    """Delete a session."""
    await service.delete_session(session_id)
    return json_response(CleanedBody())


@router.post("/e2b/execute", response_model=ApiResultBody, openapi_extra=body_schema(ApiCodeBody))
async def api_execute_code(service: Service, request: Request) -> Response:
    """Run a program and wait for its result.

    Files that it leaves in `/workspace/artifacts` are kept, and stay after the session's end. The result
    lists them, if the caller may use files.
    """
    body = await read_body(request, ApiCodeBody)
    argv = _LANGUAGES.get(body.language.lower())
    if argv is None:
        raise InvalidRequest(f"language must be one of {', '.join(sorted(_LANGUAGES))}.")
    exec_request = ExecRequest(argv=argv, stdin=True, timeout_s=body.timeout)
    before = await _files_to_keep(service, body.session_id)
    result = await service.execute(body.session_id, exec_request, body.code.encode())
    hold_at_least(len(result.stdout) + len(result.stderr))
    return code_result_response(result, await _kept(service, body.session_id, before))


async def _files_to_keep(service: SandboxService, session_id: str) -> tuple[FileEntry, ...]:
    try:
        return (await service.files(session_id).walk(FOLDER, limit=MAX_FILES)).entries
    except (FileProblem, Forbidden):  # there is no such folder, or the caller may not look
        return ()


async def _kept(
    service: SandboxService, session_id: str, before: tuple[FileEntry, ...]
) -> tuple[Artifact, ...]:
    try:
        new = generated(before, await _files_to_keep(service, session_id))
        return (await service.keep_artifacts(session_id, new)).kept if new else ()
    except SandlotError as error:
        # The program has run, and its result must not be lost.
        log.warning("a program's artifacts were not kept", session=session_id, error=error.message)
        return ()


@router.get("/e2b/files/{session_id}", response_model=FilesBody | ApiFileBody)
async def api_read_files(
    service: Service, session_id: str, path: Annotated[str, Query(min_length=1)] = WORKSPACE
) -> Response:
    """List a folder, or return a file's content."""
    files = service.files(session_id)
    entry = await files.stat(path)
    if entry.type is FileType.DIRECTORY:
        return await files_response(service, session_id, path)
    # Reserve before reading. A file without a size, as in /proc, may be as long as the read limit.
    max_bytes = min(entry.size or MAX_READ_BYTES, MAX_READ_BYTES)
    hold_at_least(max_bytes)
    return file_content_response(path, await files.read_bytes(path, max_bytes=max_bytes))


@router.post("/e2b/files", response_model=ApiWrittenBody, openapi_extra=body_schema(ApiWriteBody))
async def api_write_file(service: Service, request: Request) -> Response:
    """Create or replace a file."""
    body = await read_body(request, ApiWriteBody)
    entry = await service.files(body.session_id).write(body.path, body.content.encode())
    return json_response(ApiWrittenBody(entry.path))
