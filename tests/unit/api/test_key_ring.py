"""The keys in memory: fresh, whatever their store does; and requests that end with their key."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.unit.api.conftest import KEY
from tests.unit.api.keyed import REVOKED_WITHIN_S, Keyed, code, keyed_server

from sandlot.api.edge.key_ring import KeyRing
from sandlot.api.edge.open_requests import OpenRequests
from sandlot.domain.callers.keys import issue
from sandlot.domain.callers.principal import OWNER, USER_SCOPES, Principal
from sandlot.domain.errors import Unauthorized, Unavailable
from sandlot.fleet.access import KEY_ENDED, AccessTokens, TokenGate
from sandlot.fleet.signing_keys import SigningKey
from sandlot.testing.eventually import eventually
from sandlot.wire.stored_keys import encode_key


@pytest_asyncio.fixture
async def keyed(tmp_path: Path) -> AsyncIterator[Keyed]:
    async with keyed_server(tmp_path) as keyed:
        yield keyed


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
    await keyed.ring.refresh()
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
    await keyed.ring.refresh()
    assert ended == {gone.key.id, revoked.key.id}
    for new in keys:
        admitted = keyed.ring.admit(new.text.encode())
        assert isinstance(admitted, Principal) is (new not in (gone, revoked))
        assert keyed.ring.has_ended(new.key.id) is (new in (gone, revoked))
    found = await keyed.store.get(revoked.key.id)
    assert found is not None
    assert found.revoked_at is not None


async def test_a_ring_that_only_reads(keyed: Keyed, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a worker: it refuses a key whose revocation the store has lost, and changes nothing itself."""
    ring = KeyRing(keyed.store, read_only=True)
    used, revoked = (issue(OWNER, ring.clock(), name="x") for _ in range(2))
    for new in (used, revoked):
        await keyed.store.add(new.key)
    await keyed.store.end(revoked.key.id, ring.clock(), revoked=True)
    await ring.refresh()
    assert isinstance(ring.admit(used.text.encode()), Principal)

    def lose(database: sqlite3.Connection) -> None:
        database.execute(
            "UPDATE keys SET key = ?, ends_at = NULL WHERE id = ?", (encode_key(revoked.key), revoked.key.id)
        )
        database.execute("UPDATE meta SET name = 'another'")

    await keyed.store._transaction(lose)
    for change in ("add", "end", "record_use", "set_limits", "forget_ended"):
        monkeypatch.setattr(keyed.store, change, None)
    await ring.refresh()
    assert ring.has_ended(revoked.key.id)
    assert not ring.has_ended(used.key.id)
    await ring._record_use()
    await ring._forget_ended()
    monkeypatch.undo()
    found = await keyed.store.get(revoked.key.id)
    assert found is not None
    assert found.revoked_at is None, "a writing ring may not have seen it"


async def test_a_key_that_comes_back_is_left_alone(keyed: Keyed) -> None:
    """As after a Redis that was restored: what the key opens then must not be ended for its earlier end."""
    new = issue(OWNER, keyed.ring.clock(), name="x")
    await keyed.ring.add(new.key)

    def rename(database: sqlite3.Connection) -> None:
        database.execute("UPDATE meta SET name = name || 'x'")

    await keyed.store._write([("DELETE FROM keys", ())])
    await keyed.store._transaction(rename)
    await keyed.ring.refresh()
    assert keyed.ring.has_ended(new.key.id)
    ended: set[str] = set()
    keyed.ring.on_end = ended.update
    await keyed.store.add(new.key)
    await keyed.ring.refresh()
    assert not keyed.ring.has_ended(new.key.id)
    assert isinstance(keyed.ring.admit(new.text.encode()), Principal)
    assert ended == set()


async def test_a_key_that_this_process_never_knew(keyed: Keyed) -> None:
    """A worker admits its tokens until it hears of the key, and then ends what they opened."""
    new = issue(OWNER, keyed.ring.clock(), name="x")
    ended: set[str] = set()
    keyed.ring.on_end = ended.update
    assert not keyed.ring.has_ended(new.key.id)
    await keyed.store.add(new.key)
    await keyed.store.end(new.key.id, keyed.ring.clock(), revoked=True)
    await keyed.ring.refresh()
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
        await keyed.ring.refresh()
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
    key = SigningKey.generate("k1")
    ended: set[str] = set()
    gate = TokenGate(key.public, worker_id="w1", generation_of=lambda _: 1, key_has_ended=ended.__contains__)
    caller = Principal("acme", USER_SCOPES, "kkkkkkkkkkkk")
    tokens = AccessTokens(key, lifetime_s=60)
    token = tokens.for_member("w1", caller).encode()
    assert gate.admit(token, "/v1/sessions") == replace(caller, forwarded=True)
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
