"""The methods of ``filesystem.Filesystem`` that look at files and move them."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from sandlot.api.e2b.bodies import read_body
from sandlot.api.e2b.calls import Handler, SandboxCall
from sandlot.api.e2b.filesystem.bodies import AtPath, ListDir, Move
from sandlot.api.e2b.filesystem.entries import entry_of
from sandlot.api.responses.json import json_response
from sandlot.api.responses.lists import entries_response, list_within_budget
from sandlot.domain.capacity.budget import hold
from sandlot.domain.computer import Files
from sandlot.domain.errors import FileProblem, TooLarge
from sandlot.domain.files import FileEntry, FileType

MAX_ENTRIES: Final = 20_000
MAX_DEPTH: Final = 10_000
# What one entry takes in memory beside our own, roughly.
_ENTRY_BYTES: Final = 512


async def stat(call: SandboxCall) -> Response:
    body = read_body(await call.request.body(), AtPath)
    call.check_user()
    files = call.service.files(call.session_id)
    entry = await files.stat(body.path, follow=False)
    return json_response({"entry": entry_of(entry, await _target(files, entry))})


async def _target(files: Files, entry: FileEntry) -> FileEntry | None:
    if entry.type is not FileType.SYMLINK:
        return None
    try:
        return await files.stat(entry.path)
    except FileProblem:  # it leads nowhere
        return None


async def list_dir(call: SandboxCall) -> Response:
    body = read_body(await call.request.body(), ListDir)
    call.check_user()
    files = call.service.files(call.session_id)
    depth = min(body.depth or 1, MAX_DEPTH)
    walk = await list_within_budget(files.walk(body.path, depth=depth, limit=MAX_ENTRIES), MAX_ENTRIES)
    if walk.truncated:
        raise TooLarge(
            f"{body.path!r:.200} has more than {MAX_ENTRIES} entries to this depth. List it with a smaller "
            "depth, or one folder at a time."
        )
    hold(_ENTRY_BYTES * len(walk.entries))
    return await entries_response("entries", [entry_of(entry) for entry in walk.entries])


async def make_dir(call: SandboxCall) -> Response:
    body = read_body(await call.request.body(), AtPath)
    call.check_user()
    files = call.service.files(call.session_id)
    try:
        await files.stat(body.path, follow=False)
    except FileProblem as error:
        if error.reason != "not_found":
            raise
        return json_response({"entry": entry_of(await files.mkdir(body.path))})
    raise FileProblem(f"{body.path!r:.200} exists already.", reason="exists", path=body.path)


async def move(call: SandboxCall) -> Response:
    body = read_body(await call.request.body(), Move)
    call.check_user()
    files = call.service.files(call.session_id)
    return json_response({"entry": entry_of(await files.move(body.source, body.destination, overwrite=True))})


async def remove(call: SandboxCall) -> Response:
    body = read_body(await call.request.body(), AtPath)
    call.check_user()
    await call.service.files(call.session_id).remove(body.path, recursive=True, missing_ok=True)
    return json_response({})


METHODS: Final[dict[str, Handler]] = {
    "/filesystem.Filesystem/Stat": stat,
    "/filesystem.Filesystem/ListDir": list_dir,
    "/filesystem.Filesystem/MakeDir": make_dir,
    "/filesystem.Filesystem/Move": move,
    "/filesystem.Filesystem/Remove": remove,
}
