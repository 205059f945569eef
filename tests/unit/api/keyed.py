"""A server whose users have keys, in the test's own loop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from tests.unit.api.conftest import KEY, Live, living

from sandlot.api.edge.key_ring import KeyRing
from sandlot.worker.store.keys import SqliteKeys

# What a revocation may take at most, everywhere.
REVOKED_WITHIN_S = 5.0


@dataclass
class Keyed:
    live: Live
    ring: KeyRing
    store: SqliteKeys

    async def create(self, by: str = KEY, **body: Any) -> dict[str, Any]:
        answer = await self.post("/v1/keys", by, {"name": "a program", **body})
        assert answer.status_code == 201, answer.text
        created: dict[str, Any] = answer.json()
        return created

    async def post(self, path: str, key: str, body: Any = None) -> httpx.Response:
        return await self.live.client.post(path, json=body, headers=bearer(key))

    async def get(self, path: str, key: str) -> httpx.Response:
        return await self.live.client.get(path, headers=bearer(key))

    async def revoke(self, key_id: str, by: str = KEY) -> httpx.Response:
        return await self.live.client.delete(f"/v1/keys/{key_id}", headers=bearer(by))


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@asynccontextmanager
async def keyed_server(folder: Path, **options: Any) -> AsyncIterator[Keyed]:
    store = SqliteKeys(folder)
    await store.open()
    ring = KeyRing(store)
    await ring.open()
    try:
        async with living(keys=ring, **options) as live:
            yield Keyed(live, ring, store)
    finally:
        await ring.close()
        await store.close()


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]
