"""One request has one id, at the coordinator that took it and at the worker that did it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

from sandlot.domain.errors import Unavailable
from sandlot.wire.tracing.request_id import REQUEST_ID_HEADER, current_request_id
from tests.fleet.fakes import FleetFake, Scene
from tests.service.served import served

NOTED = ("create_assigned", "execute", "start_exec", "attach_exec")


@pytest.fixture
def noted(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Calls that came to workers, with the ids under which these served them."""
    calls: list[tuple[str, str]] = []
    for name in NOTED:
        real = getattr(FleetFake, name)

        def note(self: FleetFake, *args: Any, name: str = name, real: Any = real, **options: Any) -> Any:
            calls.append((name, current_request_id.get()))
            return real(self, *args, **options)

        monkeypatch.setattr(FleetFake, name, note)
    return calls


@pytest.fixture
async def door(scene: Scene) -> AsyncIterator[str]:
    async with served(scene.coordinator) as url:
        yield url


async def test_every_way_to_a_worker(scene: Scene, noted: list[tuple[str, str]], door: str) -> None:
    async with httpx.AsyncClient(base_url=door) as client:
        created = await client.post("/v1/sessions", json={}, headers={REQUEST_ID_HEADER: "id-1"})
        path = f"/v1/sessions/{created.json()['id']}"
        ran = await client.post(path + "/exec", json={"command": "true"}, headers={REQUEST_ID_HEADER: "id-2"})
        events = {"Accept": "text/event-stream", REQUEST_ID_HEADER: "id-3"}
        await client.post(path + "/exec", json={"command": "true", "exec_id": "x"}, headers=events)
        own = await client.post(path + "/exec", json={"command": "true"})
    async with connect(
        door.replace("http", "ws") + path + "/execs/x/attach", additional_headers={REQUEST_ID_HEADER: "id-5"}
    ) as attached:
        async for _ in attached:
            pass
    assert [answer.headers[REQUEST_ID_HEADER] for answer in (created, ran)] == ["id-1", "id-2"]
    assert own.headers[REQUEST_ID_HEADER].startswith("req_")
    assert noted == [
        ("create_assigned", "id-1"),
        ("execute", "id-2"),
        ("start_exec", "id-3"),
        ("execute", own.headers[REQUEST_ID_HEADER]),
        ("attach_exec", "id-5"),
    ]


async def test_a_worker_s_refusal_is_told_under_it(
    scene: Scene, noted: list[tuple[str, str]], door: str
) -> None:
    for worker in scene.workers.values():
        worker.refusal = Unavailable("half done", may_have_executed=True)
    async with httpx.AsyncClient(base_url=door) as client:
        refused = await client.post("/v1/sessions", json={})
    assert refused.status_code == 503
    assert [refused.json()["request_id"]] == [request_id for _, request_id in noted]
