"""Answers a program's request from the package cache."""

from __future__ import annotations

from typing import Final

import h11

from sandlot.domain.packages.registries import Registry
from sandlot.wire.network.http_headers import values_of
from sandlot.worker.network.cache.package_cache import Content, PackageCache
from sandlot.worker.network.gate import Gate
from sandlot.worker.network.http import BadRequest
from sandlot.worker.network.requests.program import Program
from sandlot.worker.network.streams import HostProblem

_FOREVER: Final = b"max-age=31536000, immutable"
_ASK_AGAIN: Final = b"no-cache"


async def serve_package(
    cache: PackageCache, registry: Registry, program: Program, gate: Gate, request: h11.Request, rest: bytes
) -> None:
    """``rest``: the path below the gateway. Raises ``EgressDenied``, ``HostProblem`` and ``BadRequest``."""
    gate.decide(registry.permission)
    if request.method not in (b"GET", b"HEAD"):
        raise HostProblem(405, "The package cache is for reading: it takes GET and HEAD.")
    if not isinstance(await program.next_of_body(), h11.EndOfMessage):
        raise BadRequest("A request to the package cache has no body.")
    accept = b",".join(values_of(request.headers, b"accept")).decode("latin-1")
    wanted = registry.wanted(rest.partition(b"?")[0].decode("latin-1"), accept)
    if wanted is None:
        raise HostProblem(404, f"The package cache has no such page or file of {registry.name}.")
    program.touch()
    gate.meter.traffic.requests += 1
    content = await cache.get(registry, wanted)
    try:
        if content.etag and content.etag.encode() in values_of(request.headers, b"if-none-match"):
            await program.send(
                h11.Response(status_code=304, headers=_headers(content), reason=b"Not Modified")
            )
        else:
            await program.send(
                h11.Response(status_code=200, headers=_headers(content, body=True), reason=b"OK")
            )
            if request.method == b"GET":
                await _send_body(content, registry, program, gate)
        await program.send(h11.EndOfMessage())
    finally:
        content.source.close()


async def _send_body(content: Content, registry: Registry, program: Program, gate: Gate) -> None:
    at = 0
    while data := await content.source.read(at):
        at += len(data)
        await gate.metered(registry.permission, gate.meter.receiving(len(data)))
        await program.send(h11.Data(data))


def _headers(content: Content, *, body: bool = False) -> list[tuple[bytes, bytes]]:
    headers = [
        (b"cache-control", _ASK_AGAIN if content.etag else _FOREVER),
        (b"x-sandlot-cache", content.how.encode()),
    ]
    if content.etag:
        headers.append((b"etag", content.etag.encode()))
        headers.append((b"vary", b"accept"))
    if body:
        headers.append((b"content-type", content.type.encode("latin-1") or b"application/octet-stream"))
        if content.source.size is not None:
            headers.append((b"content-length", str(content.source.size).encode()))
    return headers
