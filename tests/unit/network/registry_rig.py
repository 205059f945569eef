"""A package cache behind a proxy, and a registry outside that is a stand-in on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.unit.network.rig import Outside, Rig, brokering, new_authority, outside, proxying, resolving

from sandlot.domain.packages.registries import Npm, Pypi
from sandlot.domain.secrets.gateways import parse_upstream
from sandlot.worker.network.cache.options import CacheOptions
from sandlot.worker.network.cache.package_cache import PackageCache

HERE = ["127.0.0.1"]
WHEEL = os.urandom(300_000)


@dataclass
class Index:
    """A registry that changes as its test says."""

    pages: dict[str, bytes] = field(default_factory=dict)
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    status: int = 200
    type: str = "text/html"
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    cut: int | None = None  # after so many bytes of a body, the connection breaks
    piece: int = 1_000_000
    pause_s: float = 0.0
    host: Outside | None = None
    now: float = 1000.0

    def __post_init__(self) -> None:
        self.go_on.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        path = head.split(" ")[1]
        pairs = (line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
        headers = {name.lower(): value for name, value in pairs}
        self.asked.append((path, headers))
        body = self.pages.get(path)
        if self.status in (302, 307):
            writer.write(f"HTTP/1.1 {self.status} Found\r\nlocation: {self.type}\r\n".encode())
            writer.write(b"content-length: 0\r\n\r\n")
        elif body is None or self.status != 200:
            writer.write(
                b"HTTP/1.1 %d No\r\ncontent-length: 0\r\n\r\n" % (404 if body is None else self.status)
            )
        elif headers.get("if-none-match") == tag_of(body):
            writer.write(b"HTTP/1.1 304 Not Modified\r\n\r\n")
        else:
            writer.write(f"HTTP/1.1 200 OK\r\ncontent-type: {self.type}\r\netag: {tag_of(body)}\r\n".encode())
            writer.write(b"content-length: %d\r\n\r\n" % len(body))
            writer.write(body[:1000])
            await self.go_on.wait()
            for at in range(1000, len(body) if self.cut is None else self.cut, self.piece):
                writer.write(body[at : min(at + self.piece, self.cut or len(body))])
                await writer.drain()
                await asyncio.sleep(self.pause_s)
        await writer.drain()

    def paths(self) -> list[str]:
        return [path for path, _ in self.asked]


def tag_of(body: bytes) -> str:
    return f'"{hashlib.md5(body).hexdigest()}"'


@contextlib.asynccontextmanager
async def caching(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    policy: Any = ("pypi", "npm"),
    max_bytes: int = 10_000_000,
    **options: Any,
) -> AsyncIterator[tuple[Rig, Index]]:
    """A session whose worker has a cache for an index at ``index.test``, over TLS."""
    resolving(monkeypatch, index=HERE)
    index = Index()
    outer = new_authority(folder)
    async with outside(index.serve, outer.server("index.test")) as host, brokering(folder, []) as broker:
        index.host = host
        async with proxying(list(policy), allowed=(), broker=broker, trust=outer.client()) as rig:
            registries = [
                Pypi(parse_upstream(f"https://index.test:{host.port}/simple")),
                Npm(parse_upstream(f"https://index.test:{host.port}/npm")),
            ]
            cache = PackageCache(
                folder / "packages",
                max_bytes,
                registries,
                rig.dialer,
                CacheOptions(**options),
                lambda: index.now,
            )
            await cache.open()
            broker.packages = cache
            index.pages = {
                "/simple/a/": b'<a href="/f/a-1.whl#sha256=00">a-1.whl</a>',
                "/f/a-1.whl": WHEEL,
                "/npm/b": json.dumps(
                    {
                        "versions": {
                            "1": {"dist": {"tarball": f"https://index.test:{host.port}/npm/b/-/b-1.tgz"}}
                        }
                    }
                ).encode(),
                "/npm/b/-/b-1.tgz": b"tarball",
            }
            try:
                yield rig, index
            finally:
                await cache.close()
