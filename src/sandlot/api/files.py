"""Files of a session: list, look, search, read with ranges, write, move, remove, archives, changes."""

from __future__ import annotations

import contextlib
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from sandlot.api.answers import answer
from sandlot.api.context import MAX_OFFSET, Service, within
from sandlot.api.download import download_answer, flow_answer
from sandlot.api.file_lists import list_answer, listed_within
from sandlot.api.problems import PROBLEMS, RANGE_PROBLEM
from sandlot.api.request_body import JsonRoute
from sandlot.api.streams import EVENT_STREAM, change_events, events_answer
from sandlot.domain.files import ArchiveSummary, FileEntry, FilePage, Search, Walk
from sandlot.wire.http_bodies import MkdirBody, MoveBody, RemovedBody

MAX_MODE = 0o7777
MAX_FILES = 1_000_000

router = APIRouter(
    prefix="/v1/sessions/{session_id}/files", tags=["files"], route_class=JsonRoute, responses=PROBLEMS
)

FilePath = Annotated[str, Query(min_length=1, description="Absolute, or relative to the workspace.")]
BINARY: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}


def _streamed(media_type: str) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {media_type: BINARY}}}


def _flow(media_type: str) -> dict[str, Any]:
    return {"content": {media_type: BINARY}, "description": "The content, as it is read"}


@router.get("", response_model=FilePage)
async def list_files(
    service: Service,
    session_id: str,
    path: FilePath = ".",
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
) -> Response:
    return await list_answer(
        await listed_within(service.files(session_id).list(path, after=after, limit=limit), limit)
    )


@router.delete("", response_model=RemovedBody)
async def remove_file(
    service: Service, session_id: str, path: FilePath, recursive: bool = False, missing_ok: bool = False
) -> Response:
    removed = await service.files(session_id).remove(path, recursive=recursive, missing_ok=missing_ok)
    return answer(RemovedBody(removed))


@router.get("/stat", response_model=FileEntry)
async def stat_file(service: Service, session_id: str, path: FilePath, follow: bool = True) -> Response:
    return answer(await service.files(session_id).stat(path, follow=follow))


@router.get("/walk", response_model=Walk)
async def walk_files(
    service: Service,
    session_id: str,
    path: FilePath = ".",
    depth: Annotated[int, Query(ge=0, le=10_000, description="0: to the bottom.")] = 0,
    glob: str | None = None,
    limit: Annotated[int, Query(ge=1, le=100_000)] = 10_000,
) -> Response:
    walking = service.files(session_id).walk(path, depth=depth, glob=glob, limit=limit)
    return await list_answer(await listed_within(walking, limit))


@router.get("/search", response_model=Search)
async def search_files(
    service: Service,
    session_id: str,
    pattern: Annotated[str, Query(min_length=1)],
    path: FilePath = ".",
    regex: bool = False,
    ignore_case: bool = False,
    glob: str | None = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
) -> Response:
    searching = service.files(session_id).search(
        path, pattern, regex=regex, ignore_case=ignore_case, glob=glob, limit=limit
    )
    return await list_answer(await listed_within(searching, limit))


@router.get(
    "/content",
    response_class=Response,
    responses={
        200: _flow("application/octet-stream"),
        206: _flow("application/octet-stream"),
        **RANGE_PROBLEM,
    },
)
async def read_file(service: Service, request: Request, session_id: str, path: FilePath) -> Response:
    """The bytes of a file. One range (``Range: bytes=…``) is served as such, several as the whole file."""
    return await download_answer(service.files(session_id), path, request.headers)


@router.put("/content", response_model=FileEntry, openapi_extra=_streamed("application/octet-stream"))
async def write_file(
    service: Service,
    request: Request,
    session_id: str,
    path: FilePath,
    mode: Annotated[int | None, Query(ge=0, le=MAX_MODE, description="As a decimal number.")] = None,
    parents: bool = True,
    exclusive: bool = False,
) -> Response:
    """The body, whatever its type, becomes the file's content."""
    entry = await service.files(session_id).write(
        path, request.stream(), mode=mode, parents=parents, exclusive=exclusive
    )
    return answer(entry)


@router.post("/mkdir", response_model=FileEntry)
async def make_directory(service: Service, session_id: str, body: MkdirBody) -> Response:
    mode = within("mode", body.mode, 0, MAX_MODE)
    return answer(await service.files(session_id).mkdir(body.path, parents=body.parents, mode=mode))


@router.post("/move", response_model=FileEntry)
async def move_file(service: Service, session_id: str, body: MoveBody) -> Response:
    entry = await service.files(session_id).move(body.source, body.destination, overwrite=body.overwrite)
    return answer(entry)


@router.get("/archive", response_class=Response, responses={200: _flow("application/x-tar")})
async def read_archive(service: Service, session_id: str, path: FilePath = ".") -> Response:
    """A tar of what is under the path."""
    chunks = service.files(session_id).read_archive(path)
    return await flow_answer(chunks, "application/x-tar", "archive.tar")


@router.put("/archive", response_model=ArchiveSummary, openapi_extra=_streamed("application/x-tar"))
async def write_archive(
    service: Service,
    request: Request,
    session_id: str,
    path: FilePath = ".",
    max_bytes: Annotated[int | None, Query(ge=1, le=MAX_OFFSET)] = None,
    max_files: Annotated[int | None, Query(ge=1, le=MAX_FILES)] = None,
) -> Response:
    """Unpacks a tar inside the sandbox, as its user."""
    files = service.files(session_id)
    return answer(await files.write_archive(path, request.stream(), max_bytes=max_bytes, max_files=max_files))


@router.get(
    "/watch",
    response_class=Response,
    responses={
        200: {
            "content": {EVENT_STREAM: {"schema": {"type": "string"}}},
            "description": "Events: ready, then a change for each change",
        }
    },
)
async def watch_files(
    service: Service, request: Request, session_id: str, path: FilePath = ".", recursive: bool = False
) -> Response:
    stack = contextlib.AsyncExitStack()
    changes = await stack.enter_async_context(service.files(session_id).watch(path, recursive=recursive))
    return events_answer(change_events(changes, request.state.request_id), let_go=stack.aclose)
