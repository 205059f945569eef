"""Keys of users: who may make them, what they open, and how they end."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from tests.unit.api.conftest import KEY, Live, living
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from sandlot.api.edge.key_ring import KeyRing
from sandlot.api.edge.open_requests import OpenRequests
from sandlot.domain.callers.keys import issue
from sandlot.domain.callers.principal import OWNER, USER_SCOPES, Principal
from sandlot.domain.errors import Unauthorized, Unavailable
from sandlot.fleet.access import KEY_ENDED, AccessTokens, SigningKeys, TokenGate
from sandlot.testing.eventually import eventually
from sandlot.wire.stored_keys import encode_key
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


@pytest_asyncio.fixture
async def keyed(tmp_path: Path) -> AsyncIterator[Keyed]:
    async with keyed_server(tmp_path) as keyed:
        yield keyed


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


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


# --- the ring -------------------------------------------------------------------------------------


async def test_keys_made_and_revoked_elsewhere(keyed: Keyed) -> None:
    """Another process of the fleet does both: a new key works at once, a revoked one ends by itself."""
    new = issue(OWNER, keyed.ring.clock(), name="from elsewhere")
    await keyed.store.add(new.key)
    assert (await keyed.get("/v1/sessions", new.text)).status_code == 200
    await keyed.store.end(new.key.id, keyed.ring.clock(), revoked=True)

    async def refused() -> bool:
        return (await keyed.get("/v1/sessions", new.text)).status_code == 401

    await eventually(refused, REVOKED_WITHIN_S)


async def test_guessing_does_not_wear_out_the_store(keyed: Keyed, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0
    changes = keyed.store.changes

    async def counted(mark: str = "") -> Any:
        nonlocal asked
        asked += 1
        return await changes(mark)

    monkeypatch.setattr(keyed.store, "changes", counted)
    unknown = [issue(OWNER, 0.0, name="x").text for _ in range(100)]
    loop = asyncio.get_running_loop()
    began = loop.time()
    answers = await asyncio.gather(*(keyed.get("/v1/sessions", key) for key in unknown))
    took = loop.time() - began
    assert {answer.status_code for answer in answers} == {401}
    assert asked <= 2 + took / 0.2 + took


async def test_a_store_that_is_away(keyed: Keyed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Known keys work, unknown ones are refused; a server that never read its keys says so."""
    known = (await keyed.create())["secret"]

    async def away(mark: str = "") -> Any:
        raise Unavailable("Redis is away")

    monkeypatch.setattr(keyed.store, "changes", away)
    assert (await keyed.get("/v1/sessions", known)).status_code == 200
    unknown = issue(OWNER, 0.0, name="x").text
    assert code(await keyed.get("/v1/sessions", unknown)) == (401, "unauthorized")
    ring = KeyRing(keyed.store)
    await ring.open()
    admitted = ring.admit(known.encode())
    assert isinstance(admitted, Unavailable)
    assert admitted.retry_after_s == 1.0
    await ring.close()


async def test_a_store_that_begins_anew(keyed: Keyed, monkeypatch: pytest.MonkeyPatch) -> None:
    """More keys than one answer has: those that are still there go on, one that is gone ends, and a revocation
    that the store has lost is made again.
    """
    keys = [issue(OWNER, keyed.ring.clock(), name="x", tenant=f"t{number % 3}") for number in range(520)]
    for new in keys:
        await keyed.store.add(new.key)
    await keyed.ring._refresh()
    gone, revoked = keys[7], keys[505]
    await keyed.ring.end(revoked.key.id, keyed.ring.clock(), revoked=True)
    ended: set[str] = set()
    keyed.ring.on_end = ended.update

    def lose(database: sqlite3.Connection) -> None:
        database.execute("DELETE FROM keys WHERE id = ?", (gone.key.id,))
        database.execute(
            "UPDATE keys SET key = ?, ends_at = NULL WHERE id = ?", (encode_key(revoked.key), revoked.key.id)
        )
        database.execute("UPDATE meta SET name = 'another'")

    await keyed.store._transaction(lose)
    await keyed.ring._refresh()
    assert ended == {gone.key.id, revoked.key.id}
    for new in keys:
        admitted = keyed.ring.admit(new.text.encode())
        assert isinstance(admitted, Principal) is (new not in (gone, revoked))
        assert keyed.ring.has_ended(new.key.id) is (new in (gone, revoked))
    found = await keyed.store.get(revoked.key.id)
    assert found is not None
    assert found.revoked_at is not None


async def test_a_key_that_this_process_never_knew(keyed: Keyed) -> None:
    """A worker admits its tokens until it hears of the key, and then ends what they opened."""
    new = issue(OWNER, keyed.ring.clock(), name="x")
    ended: set[str] = set()
    keyed.ring.on_end = ended.update
    assert not keyed.ring.has_ended(new.key.id)
    await keyed.store.add(new.key)
    await keyed.store.end(new.key.id, keyed.ring.clock(), revoked=True)
    await keyed.ring._refresh()
    assert ended == {new.key.id}
    assert keyed.ring.has_ended(new.key.id)


async def test_keys_expire_without_their_store(keyed: Keyed, monkeypatch: pytest.MonkeyPatch) -> None:
    created = await keyed.create(expires_in_s=60)
    ended: set[str] = set()
    keyed.ring.on_end = ended.update

    async def away(mark: str = "") -> Any:
        raise Unavailable("Redis is away")

    monkeypatch.setattr(keyed.store, "changes", away)
    now = keyed.ring.clock
    keyed.ring.clock = lambda: now() + 61
    with pytest.raises(Unavailable):
        await keyed.ring._refresh()
    assert ended == {created["key"]["id"]}


async def test_a_client_that_does_not_read_is_ended_too(keyed: Keyed) -> None:
    created = await keyed.create()
    session = (await keyed.post("/v1/sessions", created["secret"], {})).json()["id"]
    body = {"command": "yes", "exec_id": "endless", "background": True, "output_limit": None}
    assert (await keyed.post(f"/v1/sessions/{session}/exec", created["secret"], body)).status_code < 300
    reader, writer = await asyncio.open_connection("127.0.0.1", keyed.live.port)
    writer.write(
        f"GET /v1/sessions/{session}/execs/endless HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Accept: text/event-stream\r\nAuthorization: Bearer {created['secret']}\r\n\r\n".encode()
    )
    await reader.readline()
    open_requests = keyed.ring.on_end.__self__  # type: ignore[attr-defined]
    await asyncio.sleep(0.5)
    assert open_requests._tasks
    await keyed.revoke(created["key"]["id"])
    await eventually(lambda: not open_requests._tasks, REVOKED_WITHIN_S)
    writer.close()
    await keyed.live.client.delete(f"/v1/sessions/{session}")


async def test_a_request_that_swallows_its_end_is_ended_again() -> None:
    requests, caller = OpenRequests(), Principal("t", key_id="k")

    async def stubborn() -> bool:
        with requests.registered(caller):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(30)
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                return requests.take_end(caller)
        return False

    task = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    for _ in range(2):
        requests.end(["k"])
        await asyncio.sleep(0.01)
    assert await task
    assert requests._tasks == {}


async def test_a_shutdown_is_not_mistaken_for_the_end_of_a_key() -> None:
    requests, caller = OpenRequests(), Principal("t", key_id="k")

    async def served() -> None:
        with requests.registered(caller):
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                if not requests.take_end(caller):
                    raise

    task = asyncio.create_task(served())
    await asyncio.sleep(0)
    requests.end(["k"])
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_token_of_an_ended_key_opens_no_worker() -> None:
    keys = SigningKeys.parse("k1:" + "s" * 32)
    ended: set[str] = set()
    gate = TokenGate(keys, worker_id="w1", generation_of=lambda _: 1, key_has_ended=ended.__contains__)
    caller = Principal("acme", USER_SCOPES, "kkkkkkkkkkkk")
    tokens = AccessTokens(keys, lifetime_s=60)
    token = tokens.for_member("w1", caller).encode()
    assert gate.admit(token, "/v1/sessions") == caller
    ended.add("kkkkkkkkkkkk")
    refused = gate.admit(token, "/v1/sessions")
    assert isinstance(refused, Unauthorized)
    assert refused.details["reason"] == KEY_ENDED


async def test_last_use_is_written_down(keyed: Keyed) -> None:
    created = await keyed.create()
    before = keyed.ring.clock()
    assert (await keyed.get("/v1/sessions", created["secret"])).status_code == 200
    await keyed.ring._record_use()
    shown = (await keyed.get(f"/v1/keys/{created['key']['id']}", KEY)).json()
    assert shown["last_used_at"] >= before - 0.01
