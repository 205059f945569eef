"""85, 86, 88, 91, 95: ids, tokens and rates that are not the caller's. A real server, without an engine behind it."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from sandlot.api.app import routed_app
from sandlot.api.edge.key_ring import KeyRing
from sandlot.config.reading import server_settings
from sandlot.domain.callers.keys import issue
from sandlot.domain.callers.limits import CallerLimits
from sandlot.domain.callers.principal import OWNER
from sandlot.domain.ids import new_exec_id, new_sandbox_id, new_session_id
from sandlot.testing import FakeService
from sandlot.wiring.http import serve_app
from sandlot.worker.store.keys import SqliteKeys
from tests.fleet.straight_rig import Rig, rigged
from tests.service.served import served

KEY = "key-of-the-tests"
ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "docs/reference/openapi.json").read_text())
# What a route needs besides the id, so that it is the id that it is refused for.
QUERY = {"path": "x", "pattern": "x"}
BODIES: dict[str, dict[str, Any]] = {
    "/artifacts": {"paths": ["x"]},
    "/cells": {"code": "1"},
    "/contexts": {"language": "python"},
    "/restore": {"snapshot": "snp_" + "0" * 32},
    "/exec": {"command": "echo reached"},
    "/resize": {"rows": 10, "cols": 10},
    "/signal": {"signal": 15},
    "/mkdir": {"path": "x"},
    "/move": {"source": "x", "destination": "y"},
}
OF_A_SESSION = sorted(
    (method.upper(), path)
    for path, methods in SCHEMA["paths"].items()
    for method in methods
    if "{session_id}" in path
)
MALFORMED = [
    "x",
    "ses_",
    "ses_" + "g" * 32,
    "ses_" + "0" * 31,
    "SES_" + "0" * 32,
    "ses_" + "0" * 33,
    "%00",
    "..%2F..",
    "*",
]


async def asked(http: httpx.AsyncClient, method: str, path: str, session_id: str) -> httpx.Response:
    url = path.replace("{session_id}", session_id).replace("{exec_id}", "e1").replace("{name}", "default")
    url = url.replace("{port}", "8000").replace("{context}", "python")
    known = {item["name"] for item in SCHEMA["paths"][path][method.lower()].get("parameters", ())}
    options: dict[str, Any] = {"params": {name: value for name, value in QUERY.items() if name in known}}
    if path.endswith(("/content", "/archive")) and method == "PUT":
        options["content"] = b"x"
    elif method in ("POST", "PATCH"):
        options["json"] = BODIES.get("/" + path.rsplit("/", 1)[1], {})
    return await http.request(method, url, **options)


@pytest_asyncio.fixture
async def service() -> AsyncIterator[FakeService]:
    service = FakeService()
    yield service
    await service.close()


@pytest_asyncio.fixture
async def http(service: FakeService) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"Authorization": f"Bearer {KEY}"}
    async with (
        served(service, api_key=KEY) as url,
        httpx.AsyncClient(base_url=url, headers=headers, timeout=20) as http,
    ):
        yield http


async def test_85_every_route_with_an_id_that_is_nobodys(
    service: FakeService, http: httpx.AsyncClient
) -> None:
    """One answer for what never was and for what cannot be. What was deleted says so, and does nothing either."""
    living = (await http.post("/v1/sessions")).json()["id"]
    deleted = (await http.post("/v1/sessions")).json()["id"]
    assert (await http.delete(f"/v1/sessions/{deleted}")).status_code in (200, 204)
    assert len(OF_A_SESSION) >= 25
    for method, path in OF_A_SESSION:
        never = await asked(http, method, path, new_session_id())
        assert never.status_code == 404, (method, path, never.text)
        for malformed in MALFORMED:
            answer = await asked(http, method, path, malformed)
            assert answer.status_code == 404, (method, path, malformed, answer.text)
            if path.startswith("/v1/"):
                assert answer.json()["code"] == never.json()["code"] == "not_found"
        gone = await asked(http, method, path, deleted)
        # Deleting once more is no error, on any server of ours. What happened to a session stays readable.
        harmless = (method == "DELETE" and path.endswith("{session_id}")) or path.endswith("/history")
        assert gone.status_code in (404, 410) or harmless, (method, path, gone.text)
        assert living not in never.text + gone.text
    assert service.calls == [], "nothing has run"
    assert (await http.get(f"/v1/sessions/{living}")).status_code == 200


async def test_85_a_token_for_one_session_opens_no_other() -> None:
    """As another tenant would ask, who has a session of its own on the same worker: each of that one's routes."""
    async with rigged() as rig:
        mine, other = [await rig.session() for _ in range(2)]
        async with authorized(rig, mine) as http:
            assert (await http.get(f"/v1/sessions/{mine}")).status_code == 200
            for method, path in OF_A_SESSION:
                answer = await asked(http, method, path, other)
                assert answer.status_code in (401, 403, 404), (method, path, answer.text)
        assert rig.fake.calls == []


@pytest.mark.parametrize(
    "path",
    ["/v1/sessions/{}/execs/e/attach", "/v1/sessions/{}/ports/80/connect", "/v1/sessions/{}/files/watch"],
)
async def test_86_websockets_and_streams_need_the_key_too(
    service: FakeService, http: httpx.AsyncClient, path: str
) -> None:
    session = (await http.post("/v1/sessions")).json()["id"]
    url = str(http.base_url).rstrip("/") + path.format(session)
    if path.endswith(("attach", "connect")):
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            with pytest.raises(InvalidStatus) as refused:
                async with connect(url.replace("http", "ws", 1), additional_headers=headers):
                    pass
            assert refused.value.response.status_code == 401
    async with httpx.AsyncClient() as stranger:
        answer = await stranger.get(url, params=QUERY)
        # There is nothing but the WebSocket under its path, and who has no key is not told that either.
        assert answer.status_code == 401


def test_86_nothing_is_mounted_outside_of_the_edge() -> None:
    """Routes that the description leaves out are behind it as well: it stands before the router."""
    routes = {getattr(route, "path", "").replace(":path}", "}") for route in routed_app().routes}
    hidden = routes - set(SCHEMA["paths"])
    assert hidden <= {
        "/openapi.json",
        "/v1/sessions/{session_id}/execs/{exec_id}/attach",
        "/v1/sessions/{session_id}/ports/{port}/connect",
    }


def test_88_ids_cannot_be_guessed() -> None:
    """128 bits each, all of them random."""
    for new in (new_session_id, new_sandbox_id, new_exec_id):
        ids = [new().partition("_")[2] for _ in range(2000)]
        assert all(re.fullmatch("[0-9a-f]{32}", text) for text in ids)
        assert len(set(ids)) == len(ids)
        numbers = [int(text, 16) for text in ids]
        for bit in range(128):  # each is set about half of the time: 13 deviations are no accident
            assert 700 < sum(number >> bit & 1 for number in numbers) < 1300, bit


async def test_91_a_token_is_of_no_use_after_its_session() -> None:
    """Replayed after a delete: nothing runs. Forged, truncated and overdue ones: tests/unit/fleet/test_access.py."""
    async with rigged() as rig:
        session = await rig.session()
        async with authorized(rig, session) as http:
            ran = await http.post(f"/v1/sessions/{session}/exec", json={"command": "echo once"})
            assert ran.status_code == 200
            await rig.fake.delete_session(session)
            for method, path in OF_A_SESSION:
                if not path.startswith("/v1/"):
                    continue
                answer = await asked(http, method, path, session)
                harmless = (method, path) in (
                    ("DELETE", "/v1/sessions/{session_id}"),
                    ("GET", "/v1/sessions/{session_id}/history"),
                )
                assert answer.status_code in (401, 404, 410) or harmless, (method, path, answer.text)
        assert len(rig.fake.calls) == 1


def authorized(rig: Rig, session_id: str) -> httpx.AsyncClient:
    """To the worker itself, with the token that a client of this session was given."""
    session = rig.fake._records[session_id].session
    token = rig.tokens.for_session(OWNER, session, rig.worker_url, "w1").token
    return httpx.AsyncClient(
        base_url=rig.worker_url, headers={"Authorization": f"Bearer {token}"}, timeout=20
    )


async def test_95_no_header_gives_a_new_rate(tmp_path: Path) -> None:
    """A rate belongs to a key's tenant, whatever a request says about where it comes from."""
    store = SqliteKeys(tmp_path)
    await store.open()
    ring = KeyRing(store)
    await ring.open()
    service = FakeService()
    new = issue(OWNER, time.time(), name="x", tenant="acme")
    await ring.add(new.key)
    await ring.set_limits("acme", CallerLimits(calls_per_s=0.01))
    async with served(service, api_key=KEY, keys=ring) as url, httpx.AsyncClient(base_url=url) as http:
        key = {"Authorization": f"Bearer {new.text}"}
        assert (await http.get("/v1/sessions", headers=key)).status_code == 200
        for claimed in (
            {"X-Forwarded-For": "203.0.113.7"},
            {"Forwarded": "for=203.0.113.7"},
            {"X-Real-IP": "203.0.113.7"},
            {"X-Forwarded-Host": "elsewhere"},
            {"X-Request-Id": "another"},
            {"X-API-Key": new.text},
        ):
            answer = await http.get("/v1/sessions", headers={**key, **claimed})
            assert (answer.status_code, answer.json()["code"]) == (429, "busy"), claimed
        assert (await http.get("/v1/sessions", headers={"X-API-Key": new.text})).status_code == 429
    await service.close()
    await ring.close()
    await store.close()


async def test_95_no_client_chooses_its_address() -> None:
    """Limits per address count the connection's own, on the server as ``sandlot serve`` sets it up."""
    addresses: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        addresses.append(scope["client"][0])
        await PlainTextResponse(scope["scheme"])(scope, receive, send)

    listener = socket.create_server(("127.0.0.1", 0))
    port, done = listener.getsockname()[1], asyncio.Event()

    async def nothing() -> None: ...

    async def until_done() -> None:
        await done.wait()

    serving = asyncio.create_task(serve_app(app, listener, nothing, server_settings(), until=until_done))
    headers = {"X-Forwarded-For": "203.0.113.7", "X-Forwarded-Proto": "https", "Forwarded": "for=203.0.113.7"}
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
        assert (await http.get("/", headers=headers)).text == "http"
    done.set()
    await serving
    assert addresses == ["127.0.0.1"]
