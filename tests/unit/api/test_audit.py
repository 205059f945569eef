"""Key use and refusals in the history: counted, attributed, and bounded whoever calls how often."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.api.conftest import KEY
from tests.unit.api.keyed import Keyed, bearer, keyed_server

from sandlot.api.edge import audit as audits
from sandlot.api.edge.audit import MAX_ADDRESSES, RequestAudit
from sandlot.domain.callers.principal import Principal
from sandlot.domain.history.events import Event
from sandlot.domain.history.recorder import Recorder


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
async def server(tmp_path: Path, events: list[Event]) -> AsyncIterator[Keyed]:
    async with keyed_server(tmp_path, recorder=Recorder(events.append, "0123abcd")) as server:
        yield server


async def test_a_keys_use_is_recorded_once_an_hour(server: Keyed, events: list[Event]) -> None:
    new = await server.create(tenant="acme")
    for _ in range(5):
        assert (await server.get("/v1/sessions", new["secret"])).status_code == 200
    assert [(event.kind, event.tenant, event.key_id) for event in events] == [
        ("key.used", "acme", new["key"]["id"])
    ]


async def test_refusals_are_recorded_for_whom_they_concern(server: Keyed, events: list[Event]) -> None:
    new = await server.create(tenant="acme", scopes=["sessions:read"])
    for _ in range(3):
        assert (await server.get("/v1/sessions", "sl_wrong")).status_code == 401
        assert (await server.post("/v1/sessions", new["secret"], {})).status_code == 403
    refused = [event for event in events if event.kind == "request.refused"]
    assert [(event.tenant, event.key_id, dict(event.details)) for event in refused] == [
        ("", "", {"status": 401, "count": 1, "address": "127.0.0.1", "route": "GET unmatched"}),
        ("acme", new["key"]["id"], {"status": 403, "count": 1, "route": "POST /v1/sessions"}),
    ]
    assert "sl_wrong" not in str(events)


async def test_a_refused_websocket_is_recorded(server: Keyed, events: list[Event]) -> None:
    answer = await server.live.raw(
        b"GET /v1/sessions/x/execs/y/attach HTTP/1.1\r\nHost: localhost\r\nConnection: close, Upgrade\r\n"
        b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    assert b" 401 " in answer.split(b"\r\n")[0]
    assert [event.details["status"] for event in events] == [401]


async def test_no_secret_of_a_request_is_recorded(server: Keyed, events: list[Event]) -> None:
    await server.live.client.get(
        "/v1/sessions/hunter22/execs?key=hunter22",
        headers={**bearer("hunter22-hunter22"), "X-API-Key": "hunter22"},
    )
    assert events
    assert "hunter22" not in str(events)
    assert KEY not in str(events)


def scope(address: str, principal: Principal | None = None) -> Any:
    return {"client": (address, 1), "state": {} if principal is None else {"principal": principal}}


async def test_an_attacker_cannot_fill_the_history(
    events: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audits, "COUNTED_TOGETHER_S", 0.0)
    audit = RequestAudit(Recorder(events.append, "0123abcd"))
    for number in range(100_000):
        audit.observe(scope(f"10.0.{number // 250 % 250}.{number % 250}"), 401, "GET /")
    assert len(events) == MAX_ADDRESSES + 1
    await asyncio.sleep(0.05)
    assert len(events) <= 2 * (MAX_ADDRESSES + 1)
    assert sum(int(event.details["count"]) for event in events) == 100_000
    # The next minute counts anew.
    audit.observe(scope("10.9.9.9"), 401, "GET /")
    assert events[-1].details["address"] == "10.9.9.9"
    await asyncio.sleep(0.05)


async def test_keys_are_told_apart_up_to_a_number(
    events: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audits, "COUNTED_TOGETHER_S", 0.0)
    monkeypatch.setattr(audits, "MAX_COUNTS", 10)
    audit = RequestAudit(Recorder(events.append, "0123abcd"))
    for number in range(1000):
        audit.observe(scope("x", Principal("acme", key_id=f"k{number}")), 429, "GET /")
    refused = [event for event in events if event.kind == "request.refused"]
    assert len(refused) == 11
    await asyncio.sleep(0.05)
