"""The classic flat routes, on the same service. The session id is in the body."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import Response

from sandlot.api.classic.bodies import (
    WORKSPACE,
    CleanedBody,
    CreateBody,
    CreatedBody,
    ExecuteBody,
    FileBody,
    FilesBody,
    ListBody,
    SessionIdBody,
    SessionStateBody,
    UploadedBody,
    body_schema,
    classic_session,
    files_response,
    read_body,
    server_url,
)
from sandlot.api.context import Service
from sandlot.api.edge.error_responses import PROBLEMS, RANGE_PROBLEM
from sandlot.api.responses.json import json_response
from sandlot.api.responses.results import json_result_response
from sandlot.api.v1.downloads import download_response
from sandlot.api.v1.files import BINARY
from sandlot.domain.errors import InvalidRequest
from sandlot.domain.execution import ExecRequest
from sandlot.wire.exec_bodies import ResultBody

MAX_FORM_FIELDS = 10
MAX_FIELD_BYTES = 16 * 1024
CHUNK_BYTES = 64 * 1024

router = APIRouter(tags=["classic"], responses=PROBLEMS)

_UPLOAD: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["session_id", "file"],
                    "properties": {
                        "session_id": {"type": "string"},
                        "file": {"type": "string", "format": "binary"},
                        "path": {"type": "string"},
                    },
                }
            }
        },
    }
}
_DOWNLOAD: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/octet-stream": BINARY}, "description": "The content"},
    206: {"content": {"application/octet-stream": BINARY}, "description": "The requested range"},
    **RANGE_PROBLEM,
}


@router.post(
    "/create_session", response_model=CreatedBody, openapi_extra=body_schema(CreateBody, required=False)
)
async def classic_create_session(service: Service, request: Request) -> Response:
    """Create a session, or return that of the thread."""
    body = await read_body(request, CreateBody)
    session = await classic_session(service, body.environment, body.thread_id)
    return json_response(CreatedBody(session.id, server_url(request)))


@router.post("/execute", response_model=ResultBody, openapi_extra=body_schema(ExecuteBody))
async def classic_execute(service: Service, request: Request) -> Response:
    """Run a command and wait for its result."""
    body = await read_body(request, ExecuteBody)
    exec_request = ExecRequest(command=body.command, timeout_s=body.timeout)
    return json_result_response(await service.execute(body.session_id, exec_request))


@router.post("/upload_file", response_model=UploadedBody, openapi_extra=_UPLOAD)
async def classic_upload_file(service: Service, request: Request) -> Response:
    """Upload a file as a form. Large files: ``PUT /v1/sessions/{session_id}/files/content``."""
    async with request.form(max_files=1, max_fields=MAX_FORM_FIELDS, max_part_size=MAX_FIELD_BYTES) as form:
        session_id, file, path = form.get("session_id"), form.get("file"), form.get("path", "")
        if not isinstance(session_id, str) or not isinstance(file, UploadFile) or not isinstance(path, str):
            raise InvalidRequest("Send a multipart form with the fields session_id and file.")
        name = (file.filename or "").replace("\\", "/").rpartition("/")[2]
        if path == "" or path.endswith("/"):
            if name in ("", ".", ".."):
                raise InvalidRequest("The uploaded file has no name. Pass a path.")
            path = (path or WORKSPACE + "/") + name
        entry = await service.files(session_id).write(path, _chunks(file))
    return json_response(UploadedBody(name, entry.path))


async def _chunks(file: UploadFile) -> AsyncIterator[bytes]:
    while chunk := await file.read(CHUNK_BYTES):
        yield chunk


@router.get("/download_file", response_class=Response, responses=_DOWNLOAD)
async def classic_download_file(
    service: Service, request: Request, session_id: str, path: Annotated[str, Query(min_length=1)]
) -> Response:
    """Return a file's content."""
    return await download_response(service.files(session_id), path, request.headers)


@router.post(
    "/download_file", response_class=Response, responses=_DOWNLOAD, openapi_extra=body_schema(FileBody)
)
async def classic_download_file_by_post(
    service: Service, request: Request, session_id: str | None = None, path: str | None = None
) -> Response:
    """Return a file's content."""
    if session_id is None or path is None:
        body = await read_body(request, FileBody)
        session_id, path = body.session_id, body.path
    return await download_response(service.files(session_id), path, request.headers)


@router.get("/list_files", response_model=FilesBody)
async def classic_list_files(
    service: Service, session_id: str, path: Annotated[str, Query(min_length=1)] = WORKSPACE
) -> Response:
    """List a folder."""
    return await files_response(service, session_id, path)


@router.post("/list_files", response_model=FilesBody, openapi_extra=body_schema(ListBody))
async def classic_list_files_by_post(
    service: Service, request: Request, session_id: str | None = None, path: str = WORKSPACE
) -> Response:
    """List a folder."""
    if session_id is None:
        body = await read_body(request, ListBody)
        session_id, path = body.session_id, body.path
    return await files_response(service, session_id, path)


@router.get("/session/{session_id}", response_model=SessionStateBody)
async def classic_get_session(service: Service, session_id: str) -> Response:
    """Return a session."""
    return json_response(SessionStateBody.of(await service.get_session(session_id)))


@router.delete("/session/{session_id}", response_model=CleanedBody)
async def classic_delete_session(service: Service, session_id: str) -> Response:
    """Delete a session."""
    await service.delete_session(session_id)
    return json_response(CleanedBody())


@router.post("/cleanup", response_model=CleanedBody, openapi_extra=body_schema(SessionIdBody))
async def classic_cleanup(service: Service, request: Request) -> Response:
    """Delete a session."""
    await service.delete_session((await read_body(request, SessionIdBody)).session_id)
    return json_response(CleanedBody())
