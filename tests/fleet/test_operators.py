"""Who may operate a fleet: a key with the scope ``fleet:operate``, and no other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from sandlot.api.edge.key_ring import KeyRing
from sandlot.worker.store.keys import SqliteKeys
from tests.fleet.fakes import Scene
from tests.service.served import served

KEY = "key-of-the-administrator"
ROUTES = [
    ("GET", "/v1/fleet"),
    ("GET", "/v1/fleet/sessions"),
    ("POST", "/v1/fleet/workers/w1/drain"),
    ("POST", "/v1/fleet/workers/w1/undrain"),
]


@pytest_asyncio.fixture
async def fleet(scene: Scene, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a coordinator with API keys."""
    async with AsyncExitStack() as stack:
        store = SqliteKeys(tmp_path)
        await store.open()
        stack.push_async_callback(store.close)
        ring = KeyRing(store)
        await ring.open()
        stack.push_async_callback(ring.close)
        operations = scene.coordinator.operations
        url = await stack.enter_async_context(
            served(scene.coordinator, api_key=KEY, keys=ring, fleet=operations)
        )
        yield await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=20))


async def key(fleet: httpx.AsyncClient, *scopes: str) -> dict[str, str]:
    body = {"name": "a key", "tenant": "acme"} | ({"scopes": list(scopes)} if scopes else {})
    made = await fleet.post("/v1/keys", json=body, headers={"Authorization": f"Bearer {KEY}"})
    assert made.status_code == 201, made.text
    return {"Authorization": f"Bearer {made.json()['secret']}"}


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_o6_an_ordinary_key_operates_nothing(
    fleet: httpx.AsyncClient, scene: Scene, method: str, path: str
) -> None:
    for scopes in ((), ("admin",), ("metrics:read",)):
        refused = await fleet.request(method, path, headers=await key(fleet, *scopes))
        assert refused.status_code == 403, refused.text
        assert "fleet:operate" in refused.text
    assert not scene.workers["w1"].draining
    allowed = await fleet.request(method, path, headers=await key(fleet, "fleet:operate"))
    assert allowed.status_code in (200, 204), allowed.text
    assert scene.workers["w1"].draining == path.endswith("/drain")


async def test_o6_an_ordinary_key_reads_no_metrics(fleet: httpx.AsyncClient) -> None:
    for scopes in ((), ("admin",), ("fleet:operate",)):
        assert (await fleet.get("/metrics", headers=await key(fleet, *scopes))).status_code == 403
    assert (await fleet.get("/metrics", headers=await key(fleet, "metrics:read"))).status_code == 200
