"""Downloads. What a sandbox made is never a page of this server: an attachment, under a sandboxing policy."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Final
from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import Response

from sandlot.api.streams import Flow, close
from sandlot.domain.computer import Files

_RANGE: Final = re.compile(r"bytes=(\d{0,19})-(\d{0,19})")


async def download_answer(files: Files, path: str, headers: Headers) -> Response:
    """The size is what ``stat`` says; of a file that grows meanwhile that much is sent, one without a size
    (as in /proc) is read to its end."""
    entry = await files.stat(path)
    # Without validators there is nothing that If-Range could match: the whole file, then.
    wanted = None if "if-range" in headers else byte_range(headers.get("range", ""), entry.size)
    if wanted is not None:
        first, length = wanted
        chunks = files.read(path, offset=first, length=length)
        where = f"bytes {first}-{first + length - 1}/{entry.size}"
        return await flow_answer(
            chunks, "application/octet-stream", entry.name, length=length, content_range=where
        )
    if entry.size == 0:
        return await flow_answer(files.read(path), "application/octet-stream", entry.name)
    chunks = files.read(path, length=entry.size)
    return await flow_answer(chunks, "application/octet-stream", entry.name, length=entry.size)


def byte_range(header: str, size: int) -> tuple[int, int] | None:
    """Offset and length. None: no range, or what may be ignored (several ranges, other units)."""
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
        raise HTTPException(416, "the range is outside the file", {"Content-Range": f"bytes */{size}"})
    return first, last - first + 1


async def flow_answer(
    chunks: AsyncIterator[bytes],
    media_type: str,
    name: str,
    *,
    length: int | None = None,
    content_range: str | None = None,
) -> Response:
    """Reads the first piece before it answers, so that a refusal is an error and not a broken download."""
    first = await anext(chunks, b"")
    headers = {
        "Content-Disposition": attachment(name),
        "Content-Security-Policy": "sandbox; default-src 'none'",
        "Cache-Control": "no-store",
        "Accept-Ranges": "none" if media_type == "application/x-tar" else "bytes",
    }
    if length is not None:
        headers["content-length"] = str(length)
    if content_range is not None:
        headers["Content-Range"] = content_range

    async def all_chunks() -> AsyncIterator[bytes]:
        yield first
        async for chunk in chunks:
            yield chunk

    async def let_go() -> None:
        await close(chunks)

    return Flow(
        all_chunks(),
        let_go=let_go,
        media_type=media_type,
        status=200 if content_range is None else 206,
        headers=headers,
    )


def attachment(name: str) -> str:
    """RFC 6266: a plain name for old clients, the exact one (RFC 8187) for all others."""
    plain = re.sub(r"[^A-Za-z0-9._ -]", "_", name)[:200] or "file"
    exact = quote(name.encode("utf-8", "surrogateescape")[:600], safe="")
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{exact}"
