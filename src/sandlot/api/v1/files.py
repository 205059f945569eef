"""Files of a session: list, stat, search, read, write, move, remove, archives, changes."""

from __future__ import annotations

import contextlib
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from sandlot.api.context import MAX_OFFSET, Service, check_range
from sandlot.api.edge.error_responses import PROBLEMS, RANGE_PROBLEM
from sandlot.api.edge.request_body import JsonRoute
from sandlot.api.responses.json import json_response
from sandlot.api.responses.lists import list_response, list_within_budget
from sandlot.api.responses.streams import EVENT_STREAM, change_events, event_stream_response
from sandlot.api.v1.downloads import attachment_response, download_response
from sandlot.domain.files import ArchiveSummary, FileEntry, FilePage, Search, Walk
from sandlot.wire.http_bodies import MkdirBody, MoveBody, RemovedBody

MAX_MODE = 0o7777
MAX_FILES = 1_000_000

router = APIRouter(
    prefix="/v1/sessions/{session_id}/files", tags=["files"], route_class=JsonRoute, responses=PROBLEMS
)

FilePath = Annotated[str, Query(min_length=1, description="Absolute, or relative to `/workspace`.")]
BINARY: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}


def _binary_request(media_type: str) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {media_type: BINARY}}}


def _binary_response(media_type: str, what: str = "The content") -> dict[str, Any]:
    return {"content": {media_type: BINARY}, "description": what}


@router.get("", response_model=FilePage)
async def list_files(
    service: Service,
    session_id: str,
    path: FilePath = ".",
    after: Annotated[str | None, Query(description="The `next` value of the previous page.")] = None,
    limit: Annotated[int, Query(ge=1, le=10_000, description="Maximum number of entries per page.")] = 1000,
) -> Response:
    """List a folder, sorted by name."""
    return await list_response(
        await list_within_budget(service.files(session_id).list(path, after=after, limit=limit), limit)
    )


@router.delete("", response_model=RemovedBody)
async def remove_file(
    service: Service,
    session_id: str,
    path: FilePath,
    recursive: Annotated[bool, Query(description="Remove a folder and everything in it.")] = False,
    missing_ok: Annotated[bool, Query(description="Do not fail if the path does not exist.")] = False,
) -> Response:
    """Remove a file or folder."""
    removed = await service.files(session_id).remove(path, recursive=recursive, missing_ok=missing_ok)
    return json_response(RemovedBody(removed))


@router.get("/stat", response_model=FileEntry)
async def stat_file(
    service: Service,
    session_id: str,
    path: FilePath,
    follow: Annotated[
        bool, Query(description="`false`: describe a symbolic link itself, not its target.")
    ] = True,
) -> Response:
    """Describe a file or folder."""
    return json_response(await service.files(session_id).stat(path, follow=follow))


@router.get("/walk", response_model=Walk)
async def walk_files(
    service: Service,
    session_id: str,
    path: FilePath = ".",
    depth: Annotated[
        int, Query(ge=0, le=10_000, description="How many levels deep to list. 0 lists all.")
    ] = 0,
    glob: Annotated[str | None, Query(description="Return only paths that match, such as `**/*.py`.")] = None,
    limit: Annotated[int, Query(ge=1, le=100_000, description="Maximum number of entries.")] = 10_000,
) -> Response:
    """List everything under a folder."""
    walking = service.files(session_id).walk(path, depth=depth, glob=glob, limit=limit)
    return await list_response(await list_within_budget(walking, limit))


@router.get("/search", response_model=Search)
async def search_files(
    service: Service,
    session_id: str,
    pattern: Annotated[str, Query(min_length=1, description="The text to search for.")],
    path: FilePath = ".",
    regex: Annotated[bool, Query(description="Treat the pattern as a regular expression.")] = False,
    ignore_case: Annotated[bool, Query(description="Ignore case.")] = False,
    glob: Annotated[str | None, Query(description="Search only files that match, such as `**/*.py`.")] = None,
    limit: Annotated[int, Query(ge=1, le=10_000, description="Maximum number of matches.")] = 1000,
) -> Response:
    """Search files for lines that contain the pattern."""
    searching = service.files(session_id).search(
        path, pattern, regex=regex, ignore_case=ignore_case, glob=glob, limit=limit
    )
    return await list_response(await list_within_budget(searching, limit))


@router.get(
    "/content",
    response_class=Response,
    responses={
        200: _binary_response("application/octet-stream"),
        206: _binary_response("application/octet-stream", "The requested range"),
        **RANGE_PROBLEM,
    },
)
async def read_file(service: Service, request: Request, session_id: str, path: FilePath) -> Response:
    """Return a file's content. One range (``Range: bytes=…``) is honoured; several return the whole file."""
    return await download_response(service.files(session_id), path, request.headers)


@router.put("/content", response_model=FileEntry, openapi_extra=_binary_request("application/octet-stream"))
async def write_file(
    service: Service,
    request: Request,
    session_id: str,
    path: FilePath,
    mode: Annotated[
        int | None, Query(ge=0, le=MAX_MODE, description="Permissions as a decimal number: 493 is 0755.")
    ] = None,
    parents: Annotated[bool, Query(description="Create missing parent folders.")] = True,
    exclusive: Annotated[bool, Query(description="Fail if the file exists.")] = False,
) -> Response:
    """Create or replace a file. The body, of any type, becomes its content."""
    entry = await service.files(session_id).write(
        path, request.stream(), mode=mode, parents=parents, exclusive=exclusive
    )
    return json_response(entry)


@router.post("/mkdir", response_model=FileEntry)
async def make_directory(service: Service, session_id: str, body: MkdirBody) -> Response:
    """Create a folder."""
    mode = check_range("mode", body.mode, 0, MAX_MODE)
    return json_response(await service.files(session_id).mkdir(body.path, parents=body.parents, mode=mode))


@router.post("/move", response_model=FileEntry)
async def move_file(service: Service, session_id: str, body: MoveBody) -> Response:
    """Rename or move a file or folder."""
    entry = await service.files(session_id).move(body.source, body.destination, overwrite=body.overwrite)
    return json_response(entry)


@router.get("/archive", response_class=Response, responses={200: _binary_response("application/x-tar")})
async def read_archive(service: Service, session_id: str, path: FilePath = ".") -> Response:
    """Return a tar archive of a file or folder."""
    chunks = service.files(session_id).read_archive(path)
    return await attachment_response(chunks, "application/x-tar", "archive.tar", ranges=False)


@router.put("/archive", response_model=ArchiveSummary, openapi_extra=_binary_request("application/x-tar"))
async def write_archive(
    service: Service,
    request: Request,
    session_id: str,
    path: FilePath = ".",
    max_bytes: Annotated[
        int | None,
        Query(ge=1, le=MAX_OFFSET, description="Reject the archive if it unpacks to more bytes than this."),
    ] = None,
    max_files: Annotated[
        int | None,
        Query(ge=1, le=MAX_FILES, description="Reject the archive if it has more files than this."),
    ] = None,
) -> Response:
    """Unpack a tar archive in the sandbox, as the sandbox's user."""
    files = service.files(session_id)
    return json_response(
        await files.write_archive(path, request.stream(), max_bytes=max_bytes, max_files=max_files)
    )


@router.get(
    "/watch",
    response_class=Response,
    responses={
        200: {
            "content": {EVENT_STREAM: {"schema": {"type": "string"}}},
            "description": "A `ready` event, then one `change` event per change",
        }
    },
)
async def watch_files(
    service: Service,
    request: Request,
    session_id: str,
    path: FilePath = ".",
    recursive: Annotated[bool, Query(description="Also watch the folders below.")] = False,
) -> Response:
    """Watch a folder and report changes as server-sent events."""
    stack = contextlib.AsyncExitStack()
    changes = await stack.enter_async_context(service.files(session_id).watch(path, recursive=recursive))
    return event_stream_response(change_events(changes, request.state.request_id), release=stack.aclose)
