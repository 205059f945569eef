"""Keys of users: who may make them, what they open, and how they end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from tests.unit.api.conftest import KEY, living
from tests.unit.api.keyed import REVOKED_WITHIN_S, Keyed, bearer, code, keyed_server
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from sandlot.testing.eventually import eventually


@pytest_asyncio.fixture
async def keyed(tmp_path: Path) -> AsyncIterator[Keyed]:
    async with keyed_server(tmp_path) as keyed:
        yield keyed


# --- making and using -----------------------------------------------------------------------------


async def test_a_key_from_its_making_to_its_end(keyed: Keyed) -> None:
    created = await keyed.create(name="reports", tenant="acme")
    key, secret = created["key"], created["secret"]
    assert secret.startswith(f"sl_{key['id']}_")
    assert secret.endswith(key["hint"])
    assert key["scopes"] == ["exec", "files", "network", "sessions:read", "sessions:write"]
    assert (key["name"], key["tenant"], key["state"]) == ("reports", "acme", "active")
    for headers in (bearer(secret), {"Authorization": "", "X-API-Key": secret}):
        assert (await keyed.live.client.get("/v1/sessions", headers=headers)).status_code == 200
    listed = (await keyed.get("/v1/keys", KEY)).json()
    assert listed == {"keys": [key], "next": None}
    assert secret not in (await keyed.get(f"/v1/keys/{key['id']}", KEY)).text
    revoked = await keyed.revoke(key["id"])
    assert revoked.json()["state"] == "revoked"
    assert code(await keyed.get("/v1/sessions", secret)) == (401, "unauthorized")
    assert (await keyed.get("/v1/keys", KEY)).json()["keys"][0]["state"] == "revoked"


async def test_tenants_do_not_see_each_other(keyed: Keyed) -> None:
    keys = {name: (await keyed.create(tenant=name))["secret"] for name in ("one", "two")}
    made = await keyed.post("/v1/sessions", keys["one"], {"thread": "t"})
    assert made.status_code == 201
    session = made.json()["id"]
    assert (await keyed.get(f"/v1/sessions/{session}", keys["one"])).status_code == 200
    for foreign in (keys["two"], KEY):
        assert code(await keyed.get(f"/v1/sessions/{session}", foreign)) == (404, "not_found")
        assert (await keyed.get("/v1/sessions", foreign)).json()["sessions"] == []
    assert (await keyed.post("/v1/sessions", keys["two"], {"thread": "t"})).json()["id"] != session


async def test_scopes(keyed: Keyed) -> None:
    reader = (await keyed.create(scopes=["sessions:read"]))["secret"]
    session = await keyed.live.session()
    assert (await keyed.get(f"/v1/sessions/{session}", reader)).status_code == 200
    for refused in (
        await keyed.post("/v1/sessions", reader, {}),
        await keyed.post(f"/v1/sessions/{session}/exec", reader, {"command": "id"}),
        await keyed.get(f"/v1/sessions/{session}/files?path=.", reader),
        await keyed.get("/metrics", reader),
        await keyed.get("/v1/keys", reader),
        await keyed.post("/v1/keys", reader, {"name": "x"}),
        await keyed.revoke("aaaaaaaaaaaa", reader),
        await keyed.post("/v1/keys/aaaaaaaaaaaa/rotate", reader),
    ):
        assert code(refused) == (403, "forbidden"), refused.request.url
    assert keyed.live.service.calls == []


async def test_an_administrator_of_one_tenant(keyed: Keyed) -> None:
    """It manages its own keys, gives no scope that it lacks, and other tenants' keys do not exist for it."""
    foreign = await keyed.create(tenant="other")
    boss = (await keyed.create(tenant="acme", scopes=["admin", "exec", "sessions:read"]))["secret"]
    made = await keyed.create(by=boss)
    assert made["key"]["tenant"] == "acme"
    assert made["key"]["scopes"] == ["exec", "sessions:read"]
    assert made["key"]["created_by"] == boss.split("_")[1]
    assert code(await keyed.post("/v1/keys", boss, {"name": "x", "scopes": ["files"]})) == (403, "forbidden")
    assert code(await keyed.post("/v1/keys", boss, {"name": "x", "tenant": "other"})) == (403, "forbidden")
    assert code(await keyed.get("/v1/keys?tenant=other", boss)) == (403, "forbidden")
    listed = (await keyed.get("/v1/keys", boss)).json()["keys"]
    assert {key["tenant"] for key in listed} == {"acme"}
    assert len(listed) == 2
    for path in (foreign["key"]["id"], "aaaaaaaaaaaa", "no-id", "a" * 300):
        missing = await keyed.get(f"/v1/keys/{path}", boss)
        assert code(missing) == (404, "not_found")
        assert code(await keyed.revoke(path, boss)) == (404, "not_found")
        assert code(await keyed.post(f"/v1/keys/{path}/rotate", boss)) == (404, "not_found")
    assert (await keyed.get("/v1/sessions", foreign["secret"])).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"name": ""},
        {"name": " "},
        {"name": "x" * 101},
        {"name": "line\nbreak"},
        {"name": "x", "tenant": "No Such"},
        {"name": "x", "tenant": ""},
        {"name": "x", "scopes": []},
        {"name": "x", "scopes": ["everything"]},
        {"name": "x", "expires_in_s": 0},
        {"name": "x", "expires_in_s": -5},
        {"name": "x", "expires_in_s": 1e12},
        {"name": "x", "id": "aaaaaaaaaaaa"},
        {"name": "x", "digest": "aaaa"},
        {"name": "x", "created_by": "root"},
    ],
)
async def test_what_is_no_key(keyed: Keyed, body: dict[str, Any]) -> None:
    assert code(await keyed.post("/v1/keys", KEY, body)) == (422, "invalid_request")
    assert (await keyed.get("/v1/keys", KEY)).json()["keys"] == []


@pytest.mark.parametrize("change", ["secret", "id", "checksum", "case", "cut", "longer", "bytes"])
async def test_a_key_that_is_not_quite_one(keyed: Keyed, change: str) -> None:
    secret: str = (await keyed.create())["secret"]
    _, key_id, rest = secret.split("_")
    other = (await keyed.create())["secret"].split("_")
    wrong = {
        "secret": f"sl_{key_id}_{other[2]}",
        "id": f"sl_{other[1]}_{rest}",
        "checksum": secret[:-1] + ("a" if secret[-1] != "a" else "b"),
        "case": secret.swapcase(),
        "cut": secret[:-1],
        "longer": secret + "a",
        "bytes": secret[:-1] + "\xe4",
    }[change]
    refused = await keyed.live.client.get(
        "/v1/sessions", headers=[(b"authorization", b"Bearer " + wrong.encode("latin-1"))]
    )
    assert code(refused) == (401, "unauthorized")
    assert (await keyed.get("/v1/sessions", secret)).status_code == 200


async def test_a_server_without_a_key_has_none_to_give(tmp_path: Path) -> None:
    async with living(api_key=None) as live:
        refused = await live.client.post("/v1/keys", json={"name": "x"})
        assert code(refused) == (409, "conflict")
        assert "SANDLOT_API_KEY" in refused.json()["detail"]


async def test_no_cache_keeps_a_secret(keyed: Keyed) -> None:
    created = await keyed.post("/v1/keys", KEY, {"name": "x"})
    assert created.headers["cache-control"] == "no-store"
    assert created.headers["location"] == f"/v1/keys/{created.json()['key']['id']}"


# --- ending ---------------------------------------------------------------------------------------


async def test_a_key_that_expires(keyed: Keyed) -> None:
    created = await keyed.create(expires_in_s=60)
    assert (await keyed.get("/v1/sessions", created["secret"])).status_code == 200
    now = keyed.ring.clock
    keyed.ring.clock = lambda: now() + 61
    refused = await keyed.get("/v1/sessions", created["secret"])
    assert code(refused) == (401, "unauthorized")
    assert (await keyed.get(f"/v1/keys/{created['key']['id']}", KEY)).json()["state"] == "expired"


async def test_rotation(keyed: Keyed) -> None:
    old = await keyed.create(tenant="acme", scopes=["admin", "sessions:read"], expires_in_s=600)
    path = f"/v1/keys/{old['key']['id']}/rotate"
    assert (await keyed.post(path, KEY, {"grace_s": -1})).status_code == 422
    answer = await keyed.post(path, KEY, {"grace_s": 60})
    assert answer.status_code == 201
    new = answer.json()
    for name in ("tenant", "name", "scopes"):
        assert new["key"][name] == old["key"][name]
    for secret in (old["secret"], new["secret"]):
        assert (await keyed.get("/v1/sessions", secret)).status_code == 200
    replaced = (await keyed.get(f"/v1/keys/{old['key']['id']}", KEY)).json()
    assert replaced["replaced_by"] == new["key"]["id"]
    # A key may rotate itself, without a grace: it gets the answer, and then it is over.
    third = await keyed.post(f"/v1/keys/{new['key']['id']}/rotate", new["secret"])
    assert third.status_code == 201, third.text
    assert (await keyed.get("/v1/sessions", new["secret"])).status_code == 401
    assert (await keyed.get("/v1/sessions", third.json()["secret"])).status_code == 200
    again = await keyed.post(f"/v1/keys/{new['key']['id']}/rotate", KEY)
    assert code(again) == (422, "invalid_request")


async def test_a_key_that_revokes_itself_gets_an_answer(keyed: Keyed) -> None:
    boss = await keyed.create(scopes=["admin"])
    assert (await keyed.revoke(boss["key"]["id"], boss["secret"])).status_code == 200
    assert (await keyed.revoke(boss["key"]["id"], boss["secret"])).status_code == 401


async def test_open_requests_end_with_their_key(keyed: Keyed) -> None:
    """A stream, a WebSocket and a call that waits; those of another key go on."""
    mine, other = await keyed.create(), await keyed.create()
    session = (await keyed.post("/v1/sessions", mine["secret"], {})).json()["id"]
    for exec_id in ("streamed", "attached"):
        body = {
            "command": "yes | head -c 100; sleep 60",
            "exec_id": exec_id,
            "background": True,
            "stdin": True,
        }
        assert (await keyed.post(f"/v1/sessions/{session}/exec", mine["secret"], body)).status_code < 300
    loop = asyncio.get_running_loop()
    ended_at: dict[str, float] = {}

    async def stream(key: str, name: str) -> None:
        events = f"/v1/sessions/{session}/execs/streamed?wait_s=30"
        headers = {**bearer(key), "Accept": "text/event-stream"}
        async with keyed.live.client.stream("GET", events, headers=headers) as response:
            assert response.status_code == 200, await response.aread()
            began.add(name)
            try:
                async for _ in response.aiter_bytes():
                    pass
            except httpx.RemoteProtocolError:
                pass
        ended_at[name] = loop.time()

    async def wait(key: str, name: str) -> httpx.Response:
        began.add(name)
        answer = await keyed.get(f"/v1/sessions/{session}/execs/streamed?wait_s=30", key)
        ended_at[name] = loop.time()
        return answer

    async def attach(key: str, name: str) -> int | None:
        url = f"ws://127.0.0.1:{keyed.live.port}/v1/sessions/{session}/execs/attached/attach"
        async with connect(url, additional_headers=bearer(key)) as socket:
            began.add(name)
            try:
                while True:
                    await socket.recv()
            except ConnectionClosed as closed:
                ended_at[name] = loop.time()
                return closed.rcvd.code if closed.rcvd else None

    began: set[str] = set()
    ours = [
        asyncio.create_task(stream(mine["secret"], "stream")),
        asyncio.create_task(wait(mine["secret"], "wait")),
        asyncio.create_task(attach(mine["secret"], "attach")),
    ]
    theirs = asyncio.create_task(stream(other["secret"], "other"))
    await eventually(lambda: len(began) == 4, 10)
    await asyncio.sleep(0.2)
    revoked_at = loop.time()
    assert (await keyed.revoke(mine["key"]["id"])).status_code == 200
    _, waited, closed = await asyncio.wait_for(asyncio.gather(*ours), REVOKED_WITHIN_S)
    assert isinstance(waited, httpx.Response)
    assert code(waited) == (401, "unauthorized")
    assert waited.json()["may_have_executed"]
    assert closed == 1008
    assert max(ended_at.values()) - revoked_at < REVOKED_WITHIN_S
    assert not theirs.done()
    theirs.cancel()
    with pytest.raises(InvalidStatus) as refused:
        await attach(mine["secret"], "again")
    assert refused.value.response.status_code == 401
