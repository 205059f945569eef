"""GET and POST /files: the contents of files."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator
from typing import Final

from starlette.requests import ClientDisconnect
from starlette.responses import Response

from sandlot.api.e2b.admission import query_of
from sandlot.api.e2b.calls import SandboxCall
from sandlot.api.e2b.files.multipart import FormFiles
from sandlot.api.responses.json import json_response
from sandlot.api.v1.downloads import download_response
from sandlot.domain.errors import FileProblem, InvalidRequest, TooLarge, Unsupported
from sandlot.domain.files import FileEntry, FileType

_FIELDS: Final = ("path", "username", "signature", "signature_expiration")
_METADATA_HEADER: Final = "x-metadata-"
_GZIP: Final = 16 + zlib.MAX_WBITS
# Of what one compressed piece becomes at once.
_PIECE_BYTES: Final = 256 * 1024


async def read_file(call: SandboxCall) -> Response:
    path = _path_of(call)
    if path is None:
        raise InvalidRequest("Name the file in the query field 'path'.")
    files = call.service.files(call.session_id)
    entry = await files.stat(path)
    if entry.type is FileType.DIRECTORY:
        raise FileProblem(f"{path!r:.200} is a folder.", reason="is_a_directory", path=path)
    return await download_response(files, path, call.request.headers)


async def write_files(call: SandboxCall, max_bytes: int) -> Response:
    """Create or replace files: one by its content, or any number by a form."""
    path = _path_of(call)
    for name in call.request.headers:
        if name.startswith(_METADATA_HEADER):
            raise Unsupported("Files have no metadata here. Leave out metadata.")
    content_type = call.header("content-type") or ""
    encoding = (call.header("content-encoding") or "identity").lower()
    if encoding not in ("identity", "gzip"):
        raise Unsupported(f"Content-Encoding {encoding!r:.40} is not supported. Use gzip, or none.")
    files = call.service.files(call.session_id)
    sent = call.request.stream()
    chunks = _unpacked(sent, max_bytes) if encoding == "gzip" else sent
    if content_type.partition(";")[0].strip().lower() == "application/octet-stream":
        if path is None:
            raise InvalidRequest("Name the file in the query field 'path'.")
        return json_response([_written(await files.write(path, _whole(chunks)))])
    form = FormFiles(content_type, chunks)
    written: list[dict[str, str]] = []
    async for name in form.names():
        if path is not None and written:
            raise InvalidRequest("With 'path' in the query, the form has exactly one file.")
        target = name if path is None else path
        if not target:
            raise InvalidRequest("A file of the form has no name. Give its path as its name.")
        written.append(_written(await files.write(target, form.content())))
    if not written:
        raise InvalidRequest("The form has no files.")
    return json_response(written)


def _path_of(call: SandboxCall) -> str | None:
    fields = query_of(call.request.scope)
    for name in fields:
        if name not in _FIELDS:
            raise InvalidRequest(f"Unknown query field {name!r:.80}. Fields are: {', '.join(_FIELDS)}.")
    call.check_user(fields.get("username"))
    return fields.get("path")


def _written(entry: FileEntry) -> dict[str, str]:
    return {"name": entry.name, "path": entry.path, "type": "file"}


async def _whole(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """A file whose client left must not be taken for a complete one."""
    try:
        async for chunk in chunks:
            yield chunk
    except ClientDisconnect:
        raise InvalidRequest("The client left before its file was complete.") from None


async def _unpacked(chunks: AsyncIterator[bytes], max_bytes: int) -> AsyncIterator[bytes]:
    """Unpack in bounded pieces. A small body may unpack to a huge file, which counts as an upload does."""
    unpacker, total = zlib.decompressobj(_GZIP), 0
    try:
        async for chunk in _whole(chunks):
            pending, more = chunk, True
            while pending or more:  # all of the input may be taken while there is more output
                if unpacker.eof:
                    if pending:
                        raise InvalidRequest("Something follows the end of the gzip data.")
                    break
                piece = unpacker.decompress(pending, _PIECE_BYTES)
                pending, more = unpacker.unconsumed_tail or unpacker.unused_data, len(piece) == _PIECE_BYTES
                total += len(piece)
                if total > max_bytes:
                    raise TooLarge(f"The file unpacks to more than {max_bytes} bytes.")
                if piece:
                    yield piece
    except zlib.error:
        raise InvalidRequest("The body is not valid gzip data.") from None
    if not unpacker.eof:
        raise InvalidRequest("The gzip data ends too early.")
