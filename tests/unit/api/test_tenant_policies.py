"""The command policy that an operator gives a tenant, over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from tests.unit.api.conftest import KEY
from tests.unit.api.keyed import Keyed, bearer, code, keyed_server

from sandlot.api.edge.key_ring import KeyRing
from sandlot.config.registry.policies import shipped_policy
from sandlot.domain.errors import Unavailable
from sandlot.domain.policy.tenant_policies import TenantPolicies

KNOWN = {name: shipped_policy(name) for name in ("validation", "approval")}


@pytest_asyncio.fixture
async def keyed(tmp_path: Path) -> AsyncIterator[Keyed]:
    async with keyed_server(tmp_path, policies=tuple(KNOWN)) as keyed:
        keyed.live.service._policies = TenantPolicies(KNOWN, keyed.ring.policy_of)
        yield keyed


async def put(keyed: Keyed, tenant: str, body: Any, key: str = KEY) -> httpx.Response:
    return await keyed.live.client.put(f"/v1/tenants/{tenant}/policy", json=body, headers=bearer(key))


async def test_a_tenants_commands_must_pass_its_policy(keyed: Keyed) -> None:
    keys = {tenant: (await keyed.create(tenant=tenant))["secret"] for tenant in ("acme", "other")}
    paths = {}
    for tenant, key in keys.items():
        session = (await keyed.post("/v1/sessions", key, {})).json()["id"]
        paths[tenant] = f"/v1/sessions/{session}/exec"
    answer = await put(keyed, "acme", {"policy": "validation"})
    assert (answer.status_code, answer.json()["policy"]) == (200, "validation")
    refused = await keyed.post(paths["acme"], keys["acme"], {"command": "rm -rf /", "approved": True})
    assert code(refused) == (403, "policy_denied")
    assert refused.json()["details"]["policy"] == "validation"
    assert (await keyed.post(paths["acme"], keys["acme"], {"command": "true"})).status_code == 200
    assert (await keyed.post(paths["other"], keys["other"], {"command": "rm -rf /x"})).status_code == 200
    assert (await keyed.get("/v1/tenants/acme", keys["acme"])).json()["policy"] == "validation"
    assert (await keyed.get("/v1/tenants/other", keys["other"])).json()["policy"] is None
    # What was set for the limits stays, and the other way round.
    limits = await keyed.live.client.put("/v1/tenants/acme/limits", json={"sessions": 3}, headers=bearer(KEY))
    assert limits.json()["policy"] == "validation"
    cleared = (await put(keyed, "acme", {"policy": None})).json()
    assert (cleared["policy"], cleared["own_limits"]["sessions"]) == (None, 3)
    assert (await keyed.post(paths["acme"], keys["acme"], {"command": "rm -rf /x"})).status_code == 200


async def test_a_policy_that_is_not_there(keyed: Keyed) -> None:
    key = (await keyed.create(tenant="acme"))["secret"]
    session = (await keyed.post("/v1/sessions", key, {})).json()["id"]
    refused = await put(keyed, "acme", {"policy": "validaton"})
    assert code(refused) == (422, "invalid_request")
    assert (
        "Did you mean 'validation'? The server's registry has: approval, validation."
        in (refused.json()["detail"])
    )
    # Another server knew it.
    await keyed.store.set_policy("acme", "team")
    await keyed.ring.refresh()
    answer = await keyed.post(f"/v1/sessions/{session}/exec", key, {"command": "true"})
    assert code(answer) == (403, "policy_denied")
    assert "Tenant acme has the command policy team" in answer.json()["detail"]


@pytest.mark.parametrize(
    "body", [{}, {"policy": ""}, {"policy": 1}, {"polcy": None}, {"policy": ["x"]}, None]
)
async def test_what_is_no_policy(keyed: Keyed, body: Any) -> None:
    assert code(await put(keyed, "acme", body)) == (422, "invalid_request")
    assert code(await put(keyed, "No Tenant", {"policy": None})) == (422, "invalid_request")


async def test_who_sets_and_lists_them(keyed: Keyed) -> None:
    boss = (await keyed.create(tenant="acme", scopes=["admin", "sessions:read", "exec"]))["secret"]
    operator = (await keyed.create(scopes=["fleet:operate"]))["secret"]
    for tenant in ("acme", "other"):
        assert code(await put(keyed, tenant, {"policy": None}, boss)) == (403, "forbidden")
    assert (await put(keyed, "b", {"policy": "approval"}, operator)).status_code == 200
    listed = (await keyed.get("/v1/tenants", operator)).json()["tenants"]
    assert [(tenant["tenant"], tenant["policy"]) for tenant in listed] == [("b", "approval")]


async def test_another_process_sets_them(keyed: Keyed) -> None:
    await keyed.store.set_policy("acme", "validation")
    await keyed.ring.refresh()
    assert keyed.ring.policy_of("acme") == "validation"
    await keyed.store.set_policy("acme", None)
    await keyed.ring.refresh()
    assert keyed.ring.policies == {}


async def test_before_the_first_load_nobody_knows(keyed: Keyed) -> None:
    """A server that could not reach its store yet must not run what a policy denies."""
    ring = KeyRing(keyed.store)
    with pytest.raises(Unavailable, match="Retry"):
        ring.policy_of("acme")
    await ring.refresh()
    assert ring.policy_of("acme") is None
