"""Attack 85 with keys: every route of the OpenAPI document, and every WebSocket, by a caller who may not."""

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
from fastapi.routing import APIWebSocketRoute
from starlette.routing import WebSocketRoute
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from sandlot.api.app import routed_app
from sandlot.api.edge.key_ring import KeyRing
from sandlot.domain.callers.keys import issue
from sandlot.domain.callers.principal import OWNER
from sandlot.domain.ids import new_session_id
from sandlot.fleet.access import AccessTokens
from sandlot.fleet.coordinator.operator_requests import FleetOperations
from sandlot.fleet.coordinator.worker_links import WorkerLinks
from sandlot.fleet.directory.memory import MemoryDirectory
from sandlot.fleet.signing_keys import SigningKey
from sandlot.testing import FakeService
from sandlot.worker.store.keys import SqliteKeys
from tests.attacks.test_api import MALFORMED, SCHEMA
from tests.service.served import served
from tests.unit.webhooks.receiver import rig_in

KEY = "key-of-the-administrator"
# What anybody may ask, and what every key may ask.
OPEN = {"/health", "/ready"}
WITHOUT_A_SCOPE = {"/v1/health"}
OPERATIONS = sorted(
    (method.upper(), path)
    for path, methods in SCHEMA["paths"].items()
    for method in methods
    if path not in OPEN | WITHOUT_A_SCOPE
)
WEBSOCKETS = sorted(
    route.path for route in routed_app().routes if isinstance(route, WebSocketRoute | APIWebSocketRoute)
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
OF_A_SNAPSHOT = [(method, path) for method, path in OPERATIONS if "{snapshot_id}" in path]
OF_AN_ARTIFACT = [(method, path) for method, path in OPERATIONS if "{artifact_id}" in path]
OF_A_WEBHOOK = [(method, path) for method, path in OPERATIONS if "{webhook_id}" in path]
VALUES: dict[str, Any] = {
    "command": "echo reached",
    "rows": 10,
    "cols": 10,
    "signal": 15,
    "port": 8000,
    "paths": ["a.txt"],
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
    if path == "/v1/sessions/{session_id}/restore":
        filled["snapshot"] = values.get("snapshot_id", "snp_" + "0" * 32)
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
        tokens = AccessTokens(SigningKey.generate("k1"), lifetime_s=60)
        links = WorkerLinks(tokens.for_member)
        stack.push_async_callback(links.close)
        fleet = FleetOperations(MemoryDirectory(), links, tokens)
        rig = await stack.enter_async_context(rig_in(tmp_path))
        url = await stack.enter_async_context(
            served(service, api_key=KEY, keys=ring, fleet=fleet, webhooks=rig.webhooks)
        )
        http = await stack.enter_async_context(
            httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {KEY}"}, timeout=20)
        )
        yield Tenants(service, http, stack)
    await service.close()
    await ring.close()
    await store.close()


def told(answer: httpx.Response, session_id: str) -> str:
    """What an answer says, without what differs from request to request."""
    text = answer.text.replace(answer.headers["x-request-id"], "REQUEST")
    return text.replace(session_id, "ID") if session_id else text


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


async def test_85_another_tenants_snapshot_does_not_exist(tenants: Tenants) -> None:
    """By its id on every route, for a session of one's own, in a list, and by a cursor of the other tenant."""
    mine, stranger = await tenants.caller("acme"), await tenants.caller("stranger")
    session = (await mine.post("/v1/sessions")).json()["id"]
    own = (await stranger.post("/v1/sessions")).json()["id"]
    put = {"params": {"path": "canary.txt"}, "content": b"canary"}
    assert (await mine.put(f"/v1/sessions/{session}/files/content", **put)).status_code < 300
    body = {"name": "canary", "labels": {"a": "canary"}}
    taken = [(await mine.post(f"/v1/sessions/{session}/snapshots", json=body)).json()["id"] for _ in range(2)]
    page = (await mine.get("/v1/snapshots?limit=1")).json()
    unknown = "snp_" + "0" * 32
    assert len(OF_A_SNAPSHOT) >= 2
    routes = [*OF_A_SNAPSHOT, ("POST", "/v1/sessions/{session_id}/restore")]
    for method, path in routes:
        never = await ask(stranger, method, path, session_id=own, snapshot_id=unknown)
        assert never.status_code == (204 if method == "DELETE" else 404), (method, path)
        answer = await ask(stranger, method, path, session_id=own, snapshot_id=taken[0])
        assert answer.status_code == never.status_code, (method, path, answer.text)
        assert told(answer, taken[0]) == told(never, unknown), (method, path)
    for other in MALFORMED:
        for method, path in OF_A_SNAPSHOT:
            answer = await ask(stranger, method, path, snapshot_id=other)
            assert answer.status_code in (204, 404), (method, path, other, answer.text)
    begun = [await stranger.post("/v1/sessions", json={"snapshot": each}) for each in (unknown, taken[0])]
    assert [answer.status_code for answer in begun] == [404, 404]
    assert told(begun[0], unknown) == told(begun[1], taken[0])
    mixed = await mine.get(f"/v1/snapshots/{taken[0]}/diff", params={"to": unknown})
    assert mixed.status_code == 404
    for query in ("", f"session={session}", f"after={page['next']}"):
        answer = await stranger.get(f"/v1/snapshots?{query}")
        assert (answer.status_code, answer.json()["snapshots"]) == (200, []), query
    kept = (await mine.get("/v1/snapshots")).json()["snapshots"]
    assert [each["id"] for each in kept] == taken, "the stranger has deleted nothing"


async def test_85_another_tenants_artifact_does_not_exist(tenants: Tenants) -> None:
    """By its id on every route, in a list, and by a cursor of the other tenant."""
    mine, stranger = await tenants.caller("acme"), await tenants.caller("stranger")
    session = (await mine.post("/v1/sessions", json={"thread": "t"})).json()["id"]
    ids = []
    for name in ("canary-a", "canary-b"):
        put = {"params": {"path": name}, "content": b"canary"}
        assert (await mine.put(f"/v1/sessions/{session}/files/content", **put)).status_code < 300
        kept = await mine.post(f"/v1/sessions/{session}/artifacts", json={"paths": [name]})
        ids.append(kept.json()["kept"][0]["id"])
    page = (await mine.get("/v1/artifacts?limit=1")).json()
    unknown = "art_" + "0" * 32
    assert len(OF_AN_ARTIFACT) >= 3
    for method, path in OF_AN_ARTIFACT:
        never = await ask(stranger, method, path, artifact_id=unknown)
        assert never.status_code == (204 if method == "DELETE" else 404), (method, path)
        answer = await ask(stranger, method, path, artifact_id=ids[0])
        assert answer.status_code == never.status_code, (method, path, answer.text)
        assert told(answer, ids[0]) == told(never, unknown), (method, path)
        for other in MALFORMED:
            answer = await ask(stranger, method, path, artifact_id=other)
            assert answer.status_code == 404, (method, path, other, answer.text)
    for query in ("", f"session={session}", "thread=t", f"after={page['next']}"):
        answer = await stranger.get(f"/v1/artifacts?{query}")
        assert (answer.status_code, answer.json()["artifacts"]) == (200, []), query
    content = await mine.get(f"/v1/artifacts/{ids[0]}/content")
    assert (content.status_code, content.content) == (200, b"canary")


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


CHANGE_NETWORK = ("PATCH", "/v1/sessions/{session_id}/network")


async def test_85_a_key_without_the_scope(tenants: Tenants) -> None:
    """Every route but a few says 403 and does nothing, for ids that exist and for ids that do not."""
    mine, powerless = await tenants.caller("acme"), await tenants.caller("acme", "network")
    without_network = await tenants.caller("acme", "sessions:read", "sessions:write", "exec", "files")
    living = (await mine.post("/v1/sessions", json={"thread": "t"})).json()["id"]
    key_id = (await tenants.http.get("/v1/keys")).json()["keys"][0]["id"]
    assert len(OPERATIONS) > 50
    for method, path in OPERATIONS:
        about_network = (method, path) == CHANGE_NETWORK or "{port}" in path
        caller = without_network if about_network else powerless
        answer = await ask(caller, method, path, session_id=living, key_id=key_id)
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


async def closing(url: str, key: str) -> int:
    """The code with which the server closes a WebSocket, after an error and nothing else, or refuses it."""
    try:
        opening = await connect(url, additional_headers={"Authorization": key})
    except InvalidStatus as refused:
        return 4000 + refused.response.status_code
    async with opening as socket:
        problem = json.loads(await socket.recv())
        assert problem["type"] == "error"
        with pytest.raises(ConnectionClosed) as closed:
            await socket.recv()
    assert closed.value.rcvd is not None
    return closed.value.rcvd.code


@pytest.mark.parametrize("path", WEBSOCKETS)
async def test_85_every_websocket(tenants: Tenants, path: str) -> None:
    """Foreign, deleted, malformed and unknown ids, a key without the scope, a wrong key and none."""
    mine = await tenants.caller("acme")
    session, deleted = [(await mine.post("/v1/sessions")).json()["id"] for _ in range(2)]
    assert (await mine.delete(f"/v1/sessions/{deleted}")).status_code == 204
    started = await mine.post(
        f"/v1/sessions/{session}/exec",
        json={"command": "sleep 60", "exec_id": "e1", "background": True, "stdin": True},
    )
    assert started.status_code < 300, started.text
    stranger = await tenants.caller("stranger")
    powerless = await tenants.caller("acme", "files")

    def url(session_id: str, exec_id: str = "e1") -> str:
        at = path.replace("{session_id}", session_id).replace("{exec_id}", exec_id)
        at = at.replace("{port}", "8000")
        return f"{str(tenants.http.base_url).replace('http', 'ws')}{at}"

    for caller in (mine, stranger):
        key = caller.headers["authorization"]
        for other in (new_session_id(), deleted, *MALFORMED[:6]):
            assert await closing(url(other), key) == 4404, other
    assert await closing(url(session), stranger.headers["authorization"]) == 4404
    assert await closing(url(session, "e2"), mine.headers["authorization"]) == 4404
    for any_id in (session, new_session_id()):
        assert await closing(url(any_id), powerless.headers["authorization"]) == 4403
    for headers in ({}, {"Authorization": "Bearer " + issue(OWNER, 0.0, name="x").text}):
        with pytest.raises(InvalidStatus) as refused:
            await connect(url(session), additional_headers=headers)
        assert refused.value.response.status_code == 401


def test_85_the_matrix_has_every_route() -> None:
    """What the document leaves out is a WebSocket, and those are above. New routes are in it by themselves."""
    paths = {getattr(route, "path", "").replace(":path}", "}") for route in routed_app().routes}
    documented = {path for _, path in OPERATIONS} | OPEN | WITHOUT_A_SCOPE | {"/openapi.json"}
    assert paths - documented == set(WEBSOCKETS)
    for path in (
        "/v1/events",
        "/v1/sessions/{session_id}/history",
        "/v1/tenants/{tenant}/limits",
        "/v1/tenants/{tenant}/policy",
        "/v1/fleet",
    ):
        assert path in documented
    assert "/v1/sessions/{session_id}/history" in {path for _, path in OF_A_SESSION}


# --- what belongs to a tenant, but has no session in its path -------------------------------------


async def test_85_another_tenants_keys(tenants: Tenants) -> None:
    """An administrator of one tenant sees, ends and renews no key of another."""
    boss = await tenants.caller("acme", "admin", "exec")
    foreign = (await tenants.http.post("/v1/keys", json={"name": "x", "tenant": "other"})).json()
    unknown = issue(OWNER, 0.0, name="x").key.id
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/rotate")):
        never = await boss.request(method, f"/v1/keys/{unknown}{path}")
        for key_id in (foreign["key"]["id"], "x", "*", "..%2F..", "%00", foreign["key"]["id"].upper()):
            answer = await boss.request(method, f"/v1/keys/{key_id}{path}")
            assert (answer.status_code, answer.json()["code"]) == (404, "not_found"), (method, key_id)
        assert told(await boss.request(method, f"/v1/keys/{foreign['key']['id']}{path}"), "") == told(
            never, ""
        )
    assert (await boss.get("/v1/keys?tenant=other")).status_code in (403, 404)
    assert "other" not in (await boss.get("/v1/keys")).text
    assert (await boss.post("/v1/keys", json={"name": "x", "tenant": "other"})).status_code in (403, 404)
    works = {"Authorization": f"Bearer {foreign['secret']}"}
    assert (await tenants.http.get("/v1/sessions", headers=works)).status_code == 200


async def test_85_a_key_gives_no_more_than_it_has(tenants: Tenants) -> None:
    boss = await tenants.caller("acme", "admin", "exec")
    for scopes in (["files"], ["fleet:operate"], ["admin", "metrics:read"], ["*"], ["exec", "EXEC"]):
        answer = await boss.post("/v1/keys", json={"name": "x", "scopes": scopes})
        assert answer.status_code in (403, 422), (scopes, answer.text)
    made = await boss.post("/v1/keys", json={"name": "x", "scopes": ["exec"]})
    assert made.status_code == 201
    assert made.json()["key"]["tenant"] == "acme"


async def test_85_another_tenants_limits(tenants: Tenants) -> None:
    mine = await tenants.caller("acme")
    limits = {"sessions": 3}
    assert (await tenants.http.put("/v1/tenants/other/limits", json=limits)).status_code == 200
    never = await mine.get("/v1/tenants/nobody")
    for name in ("other", "default", "*", "acme%00", "ACME", "..%2Facme"):
        answer = await mine.get(f"/v1/tenants/{name}")
        assert answer.status_code == 404, name
        if "/" not in answer.url.path.removeprefix("/v1/tenants/"):
            assert told(answer, "") == told(never, ""), name
    for name in ("acme", "other"):
        answer = await mine.put(f"/v1/tenants/{name}/limits", json={"sessions": 1000})
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), "not even its own"
        answer = await mine.put(f"/v1/tenants/{name}/policy", json={"policy": None})
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), "not even its own"
    assert (await mine.get("/v1/tenants")).status_code == 403
    assert (await tenants.http.get("/v1/tenants/other")).json()["limits"]["sessions"] == 3


async def test_85_another_tenants_history(tenants: Tenants) -> None:
    """By session, by thread, by a cursor of the other tenant, and as it happens."""
    mine, stranger = await tenants.caller("acme"), await tenants.caller("stranger")
    session = (await mine.post("/v1/sessions", json={"thread": "t"})).json()["id"]
    await mine.post(f"/v1/sessions/{session}/exec", json={"command": "echo canary"})
    page = (await mine.get("/v1/events?limit=1")).json()
    assert page["events"]
    for query in (
        "",
        f"session={session}",
        "thread=t",
        f"after={page['next']}",
        "kind=exec.started",
        "since=0",
    ):
        answer = await stranger.get(f"/v1/events?{query}")
        assert (answer.status_code, answer.json()["events"]) == (200, []), query
    assert (await stranger.get("/v1/events?server=true")).status_code == 403
    assert (await mine.get("/v1/events?server=true")).status_code == 403
    assert (await stranger.get("/v1/events?tenant=acme")).status_code == 422
    headers = {"Accept": "text/event-stream"}
    async with stranger.stream("GET", "/v1/events", headers=headers) as following:
        ran = await mine.post(f"/v1/sessions/{session}/exec", json={"command": "echo canary again"})
        assert ran.status_code == 200
        own = (await stranger.post("/v1/sessions")).json()["id"]
        seen = ""
        async for line in following.aiter_lines():
            seen += line
            if own in line:
                break
    assert "canary" not in seen
    assert session not in seen


async def test_85_names_of_another_tenant_are_free(tenants: Tenants) -> None:
    """A thread and an idempotency key mean the caller's own session, whoever else uses the same."""
    mine, stranger = await tenants.caller("acme"), await tenants.caller("stranger")
    same: dict[str, Any] = {
        "json": {"thread": "t", "metadata": {"a": "canary"}},
        "headers": {"Idempotency-Key": "k"},
    }
    first = (await mine.post("/v1/sessions", **same)).json()["id"]
    assert (await stranger.get("/v1/threads/t")).status_code == 404
    ran = await stranger.post("/v1/threads/t/exec", json={"exec": {"command": "echo x"}})
    assert ran.status_code == 200
    assert first not in ran.text
    assert "canary" not in ran.text
    other = (await stranger.post("/v1/sessions", json={}, headers={"Idempotency-Key": "k"})).json()["id"]
    assert other != first
    assert (await mine.post("/v1/sessions", **same)).json()["id"] == first
