"""Attack 85 with keys: every route of the OpenAPI document, and the WebSocket, by a caller who may not."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from sandlot.api.edge.key_ring import KeyRing
from sandlot.domain.ids import new_session_id
from sandlot.testing import FakeService
from sandlot.worker.store.keys import SqliteKeys
from tests.attacks.test_api import MALFORMED, SCHEMA
from tests.service.served import served
from tests.unit.webhooks.receiver import rig_in

KEY = "key-of-the-administrator"
# What anybody may ask, and what every key may ask.
OPEN = {"/health", "/ready"}
WITHOUT_A_SCOPE = {"/v1/health"}
FLEET = {path for path in SCHEMA["paths"] if path.startswith("/v1/fleet")}
OPERATIONS = sorted(
    (method.upper(), path)
    for path, methods in SCHEMA["paths"].items()
    for method in methods
    if path not in OPEN | WITHOUT_A_SCOPE | FLEET
)


def _fields(method: str, path: str) -> tuple[list[str], list[str], str]:
    """The names that a request needs, in the path or query and in the body, and the type of the body."""
    operation = SCHEMA["paths"][path][method.lower()]
    parameters = [item["name"] for item in operation.get("parameters", ()) if item["in"] != "header"]
    content = operation.get("requestBody", {}).get("content", {})
    if not content:
        return parameters, [], ""
    kind, media = next(iter(content.items()))
    schema = media["schema"]
    if "$ref" in schema:
        schema = SCHEMA["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
    return parameters, schema.get("required", []), kind


OF_A_SESSION = [
    (method, path)
    for method, path in OPERATIONS
    if "session_id" in [name for names in _fields(method, path)[:2] for name in names]
]
OF_A_WEBHOOK = [(method, path) for method, path in OPERATIONS if "{webhook_id}" in path]
VALUES: dict[str, Any] = {
    "command": "echo reached",
    "rows": 10,
    "cols": 10,
    "signal": 15,
    "exec": {"command": "echo reached"},
}


async def ask(http: httpx.AsyncClient, method: str, path: str, **ids: str) -> httpx.Response:
    """The request as the document describes it, so that it is the caller that it is refused for."""
    values = {**VALUES, "exec_id": "e1", "name": "default", "thread_id": "t", "thread": "t", **ids}
    parameters, body, kind = _fields(method, path)
    url, query = path, {}
    for name in parameters:
        if "{" + name + "}" in path:
            url = url.replace("{" + name + "}", str(values.get(name, "x")))
        elif name in ("session_id", "path", "pattern"):
            query[name] = values.get(name, "x")
    filled = {name: values.get(name, "x") for name in body}
    if path == "/v1/sessions/{session_id}/exec":
        filled["command"] = VALUES["command"]
    options: dict[str, Any] = {"params": query}
    if kind == "multipart/form-data":
        options |= {"data": {"session_id": filled["session_id"]}, "files": {"file": ("x", b"x")}}
    elif kind == "application/json":
        options["json"] = filled
    elif kind:
        options["content"] = b"x"
    return await http.request(method, url, **options)


@dataclass
class Tenants:
    service: FakeService
    http: httpx.AsyncClient
    stack: AsyncExitStack

    async def caller(self, tenant: str, *scopes: str) -> httpx.AsyncClient:
        body: dict[str, Any] = {"name": "a caller", "tenant": tenant}
        if scopes:
            body["scopes"] = list(scopes)
        made = await self.http.post("/v1/keys", json=body)
        assert made.status_code == 201, made.text
        return await self.stack.enter_async_context(
            httpx.AsyncClient(
                base_url=self.http.base_url,
                headers={"Authorization": f"Bearer {made.json()['secret']}"},
                timeout=20,
            )
        )


@pytest_asyncio.fixture
async def tenants(tmp_path: Path) -> AsyncIterator[Tenants]:
    service, store = FakeService(), SqliteKeys(tmp_path)
    await store.open()
    ring = KeyRing(store)
    await ring.open()
    async with AsyncExitStack() as stack:
        rig = await stack.enter_async_context(rig_in(tmp_path))
        url = await stack.enter_async_context(served(service, api_key=KEY, keys=ring, webhooks=rig.webhooks))
        http = await stack.enter_async_context(
            httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {KEY}"}, timeout=20)
        )
        yield Tenants(service, http, stack)
    await service.close()
    await ring.close()
    await store.close()


def told(answer: httpx.Response, session_id: str) -> str:
    """What an answer says, without what differs from request to request."""
    return answer.text.replace(session_id, "ID").replace(answer.headers["x-request-id"], "REQUEST")


async def test_85_another_tenants_session_does_not_exist(tenants: Tenants) -> None:
    """On every route the answer for a foreign id is the one for an id that never was."""
    mine, stranger = await tenants.caller("acme"), await tenants.caller("stranger")
    living = (await mine.post("/v1/sessions", json={"thread": "t", "metadata": {"a": "canary"}})).json()["id"]
    deleted = (await mine.post("/v1/sessions")).json()["id"]
    assert (await mine.delete(f"/v1/sessions/{deleted}")).status_code == 204
    await mine.post(f"/v1/sessions/{living}/exec", json={"command": "echo mine", "exec_id": "e1"})
    before = len(tenants.service.calls)
    assert len(OF_A_SESSION) >= 35
    for method, path in OF_A_SESSION:
        unknown = new_session_id()
        never = await ask(stranger, method, path, session_id=unknown)
        for other in (living, deleted, *MALFORMED):
            answer = await ask(stranger, method, path, session_id=other)
            assert answer.status_code == never.status_code == 404, (method, path, other, answer.text)
            assert "canary" not in answer.text
            if other in (living, deleted):
                assert told(answer, other) == told(never, unknown), (method, path)
            if path.startswith("/v1/"):
                assert answer.json()["code"] == "not_found", (method, path, other)
    assert len(tenants.service.calls) == before, "nothing has run"
    assert (await stranger.get("/v1/sessions")).json()["sessions"] == []
    assert (await stranger.get("/v1/sessions?thread=t")).json()["sessions"] == []
    assert (await mine.get(f"/v1/sessions/{living}")).status_code == 200


async def test_85_another_tenants_webhook_does_not_exist(tenants: Tenants) -> None:
    scopes = ("admin", "sessions:read")
    mine, stranger = await tenants.caller("acme", *scopes), await tenants.caller("stranger", *scopes)
    body = {"url": "https://canary.example.com/", "events": ["session.ended"]}
    made = (await mine.post("/v1/webhooks", json=body)).json()["webhook"]["id"]
    assert len(OF_A_WEBHOOK) >= 4
    for method, path in OF_A_WEBHOOK:
        unknown = "whk_" + "0" * 32
        never = await ask(stranger, method, path, webhook_id=unknown)
        for other in (made, *MALFORMED):
            answer = await ask(stranger, method, path, webhook_id=other)
            assert answer.status_code == never.status_code == 404, (method, path, other, answer.text)
            assert "canary" not in answer.text
            if other == made:
                assert told(answer, other) == told(never, unknown), (method, path)
    assert (await stranger.get("/v1/webhooks")).json() == {"webhooks": []}
    # An operator of all tenants has no part in it either: a webhook shows what the tenant's commands are.
    assert (await tenants.http.get(f"/v1/webhooks/{made}")).status_code == 404
    assert (await mine.get(f"/v1/webhooks/{made}")).status_code == 200


async def test_85_a_key_without_the_scope(tenants: Tenants) -> None:
    """Every route but a few says 403 and does nothing, for ids that exist and for ids that do not."""
    mine, powerless = await tenants.caller("acme"), await tenants.caller("acme", "network")
    living = (await mine.post("/v1/sessions", json={"thread": "t"})).json()["id"]
    key_id = (await tenants.http.get("/v1/keys")).json()["keys"][0]["id"]
    assert len(OPERATIONS) > 50
    for method, path in OPERATIONS:
        answer = await ask(powerless, method, path, session_id=living, key_id=key_id)
        assert answer.status_code == 403, (method, path, answer.status_code, answer.text)
        if path.startswith("/v1/"):
            assert answer.json()["code"] == "forbidden", (method, path)
    assert tenants.service.calls == [], "nothing has run"
    assert (await mine.get("/v1/sessions")).json()["sessions"][0]["id"] == living


async def test_85_every_route_without_a_key(tenants: Tenants) -> None:
    async with httpx.AsyncClient(base_url=tenants.http.base_url, timeout=20) as nobody:
        for method, path in OPERATIONS:
            answer = await ask(nobody, method, path, session_id=new_session_id(), key_id="a" * 12)
            assert answer.status_code == 401, (method, path, answer.text)


@pytest.mark.parametrize("who", ["stranger", "powerless", "nobody"])
async def test_85_the_websocket(tenants: Tenants, who: str) -> None:
    mine = await tenants.caller("acme")
    session = (await mine.post("/v1/sessions")).json()["id"]
    started = await mine.post(
        f"/v1/sessions/{session}/exec",
        json={"command": "sleep 60", "exec_id": "e1", "background": True, "stdin": True},
    )
    assert started.status_code < 300, started.text
    callers = {
        "stranger": (await tenants.caller("stranger"), 4404),
        "powerless": (await tenants.caller("acme", "network"), 4403),
    }
    url = f"{str(tenants.http.base_url).replace('http', 'ws')}/v1/sessions/{session}/execs/e1/attach"
    if who == "nobody":
        with pytest.raises(InvalidStatus) as refused:
            await connect(url)
        assert refused.value.response.status_code == 401
        return
    caller, code = callers[who]
    async with connect(url, additional_headers={"Authorization": caller.headers["authorization"]}) as socket:
        assert json.loads(await socket.recv())["type"] == "error"
        with pytest.raises(ConnectionClosed) as closed:
            await socket.recv()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == code
