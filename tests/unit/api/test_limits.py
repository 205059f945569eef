"""Limits of tenants and keys on a server: sessions, and calls per second."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from tests.unit.api.conftest import KEY
from tests.unit.api.keyed import Keyed, bearer, code, keyed_server

from sandlot.domain.callers.limits import CallerLimits
from sandlot.testing.eventually import eventually


@pytest_asyncio.fixture
async def keyed(tmp_path: Path) -> AsyncIterator[Keyed]:
    async with keyed_server(tmp_path) as keyed:
        keyed.live.service._allowances = keyed.ring.allowances
        yield keyed


async def put(keyed: Keyed, tenant: str, key: str = KEY, **limits: Any) -> httpx.Response:
    return await keyed.live.client.put(f"/v1/tenants/{tenant}/limits", json=limits, headers=bearer(key))


async def test_a_tenants_sessions(keyed: Keyed) -> None:
    key = (await keyed.create(tenant="acme"))["secret"]
    other = (await keyed.create(tenant="other"))["secret"]
    assert (await put(keyed, "acme", sessions=2)).status_code == 200
    created = [await keyed.post("/v1/sessions", key, {}) for _ in range(2)]
    assert [answer.status_code for answer in created] == [201, 201]
    refused = await keyed.post("/v1/sessions", key, {})
    assert code(refused) == (429, "busy")
    assert "Tenant acme has reached its limit of 2 sessions" in refused.json()["detail"]
    assert refused.headers["Retry-After"]
    assert (await keyed.post("/v1/sessions", other, {})).status_code == 201
    shown = (await keyed.get("/v1/tenants/acme", key)).json()
    assert shown["use"] == {"sessions": 2, "cpus": 1.0, "memory_mb": 1024}
    assert shown["limits"]["sessions"] == 2
    path = f"/v1/sessions/{created[0].json()['id']}"
    assert (await keyed.live.client.delete(path, headers=bearer(key))).status_code == 204
    assert (await keyed.post("/v1/sessions", key, {})).status_code == 201
    # Without a limit of its own, the tenant has none again.
    assert (await put(keyed, "acme")).json()["limits"]["sessions"] is None
    assert (await keyed.post("/v1/sessions", key, {})).status_code == 201


async def test_a_keys_sessions(keyed: Keyed) -> None:
    new = await keyed.create(tenant="acme", limits={"sessions": 1})
    other = (await keyed.create(tenant="acme"))["secret"]
    assert new["key"]["limits"]["sessions"] == 1
    created = await keyed.post("/v1/sessions", new["secret"], {})
    assert created.json()["created_by"] == new["key"]["id"]
    assert code(await keyed.post("/v1/sessions", new["secret"], {})) == (429, "busy")
    assert (await keyed.post("/v1/sessions", other, {})).status_code == 201
    rotated = (await keyed.post(f"/v1/keys/{new['key']['id']}/rotate", KEY)).json()
    assert rotated["key"]["limits"]["sessions"] == 1


async def test_commands_at_once(keyed: Keyed) -> None:
    new, other = await keyed.create(tenant="acme"), (await keyed.create(tenant="other"))["secret"]
    key = new["secret"]
    await put(keyed, "acme", execs=2)
    sessions = [(await keyed.post("/v1/sessions", key, {})).json()["id"] for _ in range(2)]
    paths = [f"/v1/sessions/{session}/exec" for session in sessions]
    for number in range(2):
        asked = {"command": "sleep 60", "exec_id": f"e{number}", "background": True}
        assert (await keyed.post(paths[number], key, asked)).is_success
    refused = await keyed.post(paths[0], key, {"command": "true", "background": True})
    assert code(refused) == (429, "busy")
    assert "Tenant acme may run 2 commands at once. Wait for one to end" in refused.json()["detail"]
    assert refused.json()["details"]["limit"] == "execs"
    assert (await keyed.post(paths[0], key, {"command": "true"})).status_code == 429
    theirs = (await keyed.post("/v1/sessions", other, {})).json()["id"]
    assert (await keyed.post(f"/v1/sessions/{theirs}/exec", other, {"command": "true"})).status_code == 200
    ended = await keyed.live.client.delete(f"{paths[1]}s/e1", headers=bearer(key))
    assert ended.status_code == 200

    async def runs() -> bool:
        return (await keyed.post(paths[0], key, {"command": "true"})).status_code == 200

    await eventually(runs, 10, "one has ended, so one more may run")


async def test_calls_per_second(keyed: Keyed) -> None:
    key = (await keyed.create(tenant="acme"))["secret"]
    other = (await keyed.create(tenant="other"))["secret"]
    await put(keyed, "acme", calls_per_s=0.02)
    answers = await asyncio.gather(*(keyed.get("/v1/sessions", key) for _ in range(20)))
    assert sorted(answer.status_code for answer in answers) == [200, *[429] * 19]
    [allowed] = [answer for answer in answers if answer.status_code == 200]
    assert allowed.headers["RateLimit-Policy"] == '"tenant";q=1;w=50'
    assert allowed.headers["RateLimit"].startswith('"tenant";r=0;t=')
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert "Tenant acme may make 0.02 calls per second. Retry in" in refused.json()["detail"]
    assert refused.json()["details"]["limit"] == "calls_per_s"
    assert 0 < int(refused.headers["Retry-After"]) <= 50
    assert refused.headers["RateLimit"].startswith('"tenant";r=0;t=')
    # Others are not affected, and learn of no limits.
    answer = await keyed.get("/v1/sessions", other)
    assert answer.status_code == 200
    assert "RateLimit" not in answer.headers
    # What needs no key counts for nobody.
    assert (await keyed.live.client.get("/health", headers=bearer(key))).status_code == 200


async def test_calls_of_one_key(keyed: Keyed) -> None:
    limited = (await keyed.create(tenant="acme", limits={"calls_per_s": 0.02}))["secret"]
    other = (await keyed.create(tenant="acme"))["secret"]
    await put(keyed, "acme", calls_per_s=1000)
    assert (await keyed.get("/v1/sessions", limited)).headers["RateLimit-Policy"] == (
        '"tenant";q=1000;w=1, "key";q=1;w=50'
    )
    refused = await keyed.get("/v1/sessions", limited)
    assert code(refused) == (429, "busy")
    assert "API key" in refused.json()["detail"]
    assert (await keyed.get("/v1/sessions", other)).status_code == 200


async def test_operators_are_not_counted(keyed: Keyed) -> None:
    """They must be able to revoke a key whose holder floods the server."""
    key = await keyed.create()  # of the administrator's own tenant
    await put(keyed, "default", calls_per_s=0.02)
    await keyed.get("/v1/sessions", key["secret"])
    assert code(await keyed.get("/v1/sessions", key["secret"])) == (429, "busy")
    for _ in range(3):
        assert (await keyed.get("/v1/tenants/default", KEY)).status_code == 200
    assert (await keyed.revoke(key["key"]["id"])).status_code == 200


async def test_no_key_gives_more_than_its_creator_has(keyed: Keyed) -> None:
    boss = await keyed.create(tenant="acme", scopes=["admin", "sessions:write"], limits={"sessions": 1})
    for asked in ({}, {"limits": {"sessions": 50, "cpus": 2}}):
        made = await keyed.create(boss["secret"], scopes=["sessions:write"], **asked)
        assert made["key"]["limits"]["sessions"] == 1


async def test_a_websocket_counts_too(keyed: Keyed) -> None:
    key = (await keyed.create(tenant="acme"))["secret"]
    await put(keyed, "acme", calls_per_s=0.02)
    session = (await keyed.post("/v1/sessions", key, {})).json()["id"]
    upgrade = (
        f"GET /v1/sessions/{session}/execs/none/attach HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
        f"Connection: Upgrade\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
        f"Authorization: Bearer {key}\r\n\r\n"
    )
    assert (await keyed.live.raw(upgrade.encode())).startswith(b"HTTP/1.1 429")


async def test_shared_limits(keyed: Keyed) -> None:
    """What the settings say holds for each tenant, and where a tenant has a limit of its own, that one."""
    keyed.ring.shared_limits = CallerLimits(sessions=1)
    keys = {tenant: (await keyed.create(tenant=tenant))["secret"] for tenant in ("acme", "other")}
    await put(keyed, "acme", sessions=2)
    for tenant, most in (("acme", 2), ("other", 1)):
        answers = [await keyed.post("/v1/sessions", keys[tenant], {}) for _ in range(3)]
        assert [answer.status_code for answer in answers].count(201) == most
    shown = (await keyed.get("/v1/tenants/other", KEY)).json()
    assert (shown["limits"]["sessions"], shown["own_limits"]["sessions"]) == (1, None)


async def test_who_sees_and_sets_what(keyed: Keyed) -> None:
    user = (await keyed.create(tenant="acme"))["secret"]
    boss = (await keyed.create(tenant="acme", scopes=["admin", "sessions:read"]))["secret"]
    blind = (await keyed.create(tenant="acme", scopes=["exec"]))["secret"]
    operator = (await keyed.create(scopes=["fleet:operate"]))["secret"]
    for key in (user, boss):
        assert (await keyed.get("/v1/tenants/acme", key)).status_code == 200
        assert code(await keyed.get("/v1/tenants/other", key)) == (404, "not_found")
        assert code(await keyed.get("/v1/tenants", key)) == (403, "forbidden")
        # Nobody raises the limits of their own tenant.
        assert code(await put(keyed, "acme", key, sessions=99)) == (403, "forbidden")
    assert code(await keyed.get("/v1/tenants/acme", blind)) == (403, "forbidden")
    assert (await put(keyed, "acme", operator, sessions=3)).status_code == 200
    await put(keyed, "b", operator, sessions=4)
    first = (await keyed.get("/v1/tenants?limit=1", operator)).json()
    assert [tenant["tenant"] for tenant in first["tenants"]] == ["acme"]
    second = (await keyed.get(f"/v1/tenants?limit=1&after={first['next']}", operator)).json()
    assert ([tenant["tenant"] for tenant in second["tenants"]], second["next"]) == (["b"], None)


@pytest.mark.parametrize(
    "limits",
    [
        {"session": 3},
        {"sessions": -1},
        {"calls_per_s": 0},
        {"cpus": 1e99},
        {"sessions": 1.5},
    ],
)
async def test_what_is_no_limit(keyed: Keyed, limits: dict[str, Any]) -> None:
    assert code(await put(keyed, "acme", **limits)) == (422, "invalid_request")
    assert code(await put(keyed, "No Tenant", sessions=1)) == (422, "invalid_request")
    answer = await keyed.post("/v1/keys", KEY, {"name": "x", "limits": limits})
    assert code(answer) == (422, "invalid_request")


async def test_another_process_sets_them(keyed: Keyed) -> None:
    await keyed.store.set_limits("acme", CallerLimits(sessions=7))
    await keyed.ring.refresh()
    assert keyed.ring.limits_of("acme").sessions == 7
    await keyed.store.set_limits("acme", CallerLimits())
    await keyed.ring.refresh()
    assert keyed.ring.limits == {}
