"""Downloads of files from a sandbox.

A sandbox's file is always sent as an attachment under a sandboxing policy, so that it never becomes
a page of this server.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Final
from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import Response

from sandlot.api.responses.streams import StreamedResponse, close_iterator
from sandlot.domain.computer import Files

_RANGE: Final = re.compile(r"bytes=(\d{0,19})-(\d{0,19})")


async def download_response(files: Files, path: str, headers: Headers) -> Response:
    """Send a file, or the one range of it that the headers ask for.

    The size is what ``stat`` reports. Of a file that grows meanwhile, that many bytes are sent. A
    file without a size (as in /proc) is read to its end.
    """
    entry = await files.stat(path)
    # The server sends no validators that If-Range could match, so it sends the whole file.
    requested = None if "if-range" in headers else byte_range(headers.get("range", ""), entry.size)
    if requested is not None:
        first, length = requested
        chunks = files.read(path, offset=first, length=length)
        content_range = f"bytes {first}-{first + length - 1}/{entry.size}"
        return await attachment_response(
            chunks, "application/octet-stream", entry.name, length=length, content_range=content_range
        )
    if entry.size == 0:
        return await attachment_response(files.read(path), "application/octet-stream", entry.name)
    chunks = files.read(path, length=entry.size)
    return await attachment_response(chunks, "application/octet-stream", entry.name, length=entry.size)


def byte_range(header: str, size: int) -> tuple[int, int] | None:
    """Offset and length. None: no range, or an ignorable one (several ranges, other units)."""
    match = _RANGE.fullmatch(header.strip())
    if match is None or match[1] == match[2] == "":
        return None
    if match[1] == "":
        first = max(0, size - int(match[2]))
        last = size - 1
    else:
        first = int(match[1])
        last = min(int(match[2]), size - 1) if match[2] else size - 1
        if match[2] and int(match[2]) < first:
            return None
    if first >= size or last < first:
        raise HTTPException(
            416, "The requested range is outside the file.", {"Content-Range": f"bytes */{size}"}
        )
    return first, last - first + 1


async def attachment_response(
    chunks: AsyncIterator[bytes],
    media_type: str,
    name: str,
    *,
    length: int | None = None,
    content_range: str | None = None,
    ranges: bool = True,
) -> Response:
    """Stream the chunks as an attachment.

    The first chunk is read before responding, so that a refusal is an error and not a broken
    download. ``ranges``: whether a client can ask for a part of it.
    """
    first = await anext(chunks, b"")
    headers = {
        "Content-Disposition": content_disposition(name),
        "Content-Security-Policy": "sandbox; default-src 'none'",
        "Cache-Control": "no-store",
        "Accept-Ranges": "bytes" if ranges else "none",
    }
    if length is not None:
        headers["content-length"] = str(length)
    if content_range is not None:
        headers["Content-Range"] = content_range

    async def all_chunks() -> AsyncIterator[bytes]:
        yield first
        async for chunk in chunks:
            yield chunk

    async def release() -> None:
        await close_iterator(chunks)

    return StreamedResponse(
        all_chunks(),
        release=release,
        media_type=media_type,
        status=200 if content_range is None else 206,
        headers=headers,
    )


def content_disposition(name: str) -> str:
    """RFC 6266: a plain name for old clients, the exact one (RFC 8187) for all others."""
    plain = re.sub(r"[^A-Za-z0-9._ -]", "_", name)[:200] or "file"
    exact = quote(name.encode("utf-8", "surrogateescape")[:600], safe="")
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{exact}"
