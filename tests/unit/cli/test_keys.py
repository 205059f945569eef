"""``sandlot keys`` against a real server, each command a process."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.fleet.test_cli import sandlot
from tests.service.served import served

from sandlot.api.edge.key_ring import KeyRing
from sandlot.config.registry.policies import shipped_policy
from sandlot.domain.policy.tenant_policies import TenantPolicies
from sandlot.testing import FakeService
from sandlot.worker.store.keys import SqliteKeys

pytestmark = pytest.mark.slow  # each command is a process of its own
KEY = "key-of-the-administrator"


@pytest_asyncio.fixture
async def at(tmp_path: Path) -> AsyncIterator[dict[str, str]]:
    """The variables of an administrator."""
    store = SqliteKeys(tmp_path)
    await store.open()
    ring = KeyRing(store)
    await ring.open()
    policies = TenantPolicies({"validation": shipped_policy("validation")}, ring.policy_of)
    service = FakeService(allowances=ring.allowances, tenant_policies=policies)
    async with served(service, api_key=KEY, keys=ring, policies=policies.known.keys()) as url:
        yield {"SANDLOT_URL": url, "SANDLOT_API_KEY": KEY}
    await service.close()
    await ring.close()
    await store.close()


async def test_a_key_on_the_command_line(at: dict[str, str]) -> None:
    out, told = await sandlot("keys", "create", "my reports", "--tenant", "acme", "--expires", "90d", **at)
    secret = out.strip()
    assert secret.startswith("sl_")
    assert "Keep this key now: it is not shown again." in told
    assert "for tenant acme" in told
    key_id = secret.split("_")[1]
    # Stdout has the key alone, so that a script can take it as it is.
    theirs = {**at, "SANDLOT_API_KEY": secret}
    await sandlot("run", "--thread", "t", "echo hi", **theirs)
    assert len(json.loads((await sandlot("sessions", "list", "--json", **theirs))[0])) == 1
    assert json.loads((await sandlot("sessions", "list", "--json", **at))[0]) == []
    table, _ = await sandlot("keys", "list", **at)
    assert table.splitlines()[0].split("\t")[:4] == ["KEY ID", "NAME", "TENANT", "STATE"]
    assert table.splitlines()[1].split("\t")[:4] == [key_id, "my reports", "acme", "active"]
    assert secret not in table
    _, refused = await sandlot("keys", "list", code=1, **theirs)
    assert "This key lacks the scope admin." in refused

    new = json.loads((await sandlot("keys", "rotate", key_id, "--grace", "1h", "--json", **at))[0])
    assert new["key"]["tenant"] == "acme"
    for key in (secret, new["secret"]):
        await sandlot("sessions", "list", **{**at, "SANDLOT_API_KEY": key})
    # A whole key, pasted by mistake, is taken for its id.
    out, _ = await sandlot("keys", "revoke", secret, new["key"]["id"], **at)
    assert out == f"{key_id} is revoked\n{new['key']['id']} is revoked\n"
    _, refused = await sandlot("sessions", "list", code=1, **theirs)
    assert "Invalid API key" in refused
    states = {
        key["id"]: key["state"] for key in json.loads((await sandlot("keys", "list", "--json", **at))[0])
    }
    assert states == {key_id: "revoked", new["key"]["id"]: "revoked"}


async def test_what_cannot_be(at: dict[str, str]) -> None:
    _, told = await sandlot("keys", "create", "x", "--scope", "exce", code=1, **at)
    assert "Unknown scope 'exce'. Did you mean 'exec'?" in told
    assert "sessions:read" in told
    _, told = await sandlot("keys", "create", "x", "--expires", "soon", code=1, **at)
    assert "is not a valid time" in told
    _, told = await sandlot("keys", "revoke", "nokey", code=1, **at)
    assert "There is no key with this id. `sandlot keys list` shows the ids." in told
    service = FakeService()
    async with served(service) as url:
        _, told = await sandlot("keys", "create", "x", code=1, SANDLOT_URL=url)
    await service.close()
    assert "Start a single server with SANDLOT_API_KEY" in told
