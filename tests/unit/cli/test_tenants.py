"""``sandlot tenants`` against a real server, each command a process."""

from __future__ import annotations

import json

import pytest
from tests.fleet.test_cli import sandlot
from tests.unit.cli.test_keys import at

pytestmark = pytest.mark.slow  # each command is a process of its own
__all__ = ["at"]


async def test_limits_on_the_command_line(at: dict[str, str]) -> None:
    table, _ = await sandlot("tenants", "limit", "acme", "sessions=1", "calls_per_s=50", **at)
    assert [line.split("\t") for line in table.splitlines()] == [
        ["TENANT", "SESSIONS", "CORES", "MEMORY MIB", "COMMANDS", "CREATES/S", "CALLS/S", "POLICY"],
        ["acme", "0 of 1", "0", "0", "no limit", "no limit", "50", "none"],
    ]
    out, _ = await sandlot("keys", "create", "a", "--tenant", "acme", "--limit", "cpus=2", "--json", **at)
    key = json.loads(out)
    assert key["key"]["limits"]["cpus"] == 2.0
    theirs = {**at, "SANDLOT_API_KEY": key["secret"]}
    await sandlot("run", "--thread", "t", "echo hi", **theirs)
    _, refused = await sandlot("run", "--thread", "u", "echo hi", code=1, **theirs)
    assert "Tenant acme has reached its limit of 1 session." in refused
    shown = json.loads((await sandlot("tenants", "show", "acme", "--json", **theirs))[0])
    assert [tenant["use"]["sessions"] for tenant in shown] == [1]
    # What is not named stays; none takes a limit away.
    await sandlot("tenants", "limit", "acme", "sessions=none", "memory_mb=4096", **at)
    [tenant] = json.loads((await sandlot("tenants", "list", "--json", **at))[0])
    assert tenant["own_limits"] == {
        "sessions": None,
        "cpus": None,
        "memory_mb": 4096,
        "execs": None,
        "creates_per_s": None,
        "calls_per_s": 50.0,
    }
    _, refused = await sandlot("tenants", "limit", "acme", "session=2", code=1, **at)
    assert "Unknown limit 'session'. Did you mean 'sessions'?" in refused
    _, refused = await sandlot("tenants", "limit", "acme", "sessoins=none", code=1, **at)
    assert "Did you mean 'sessions'?" in refused
    _, refused = await sandlot("tenants", "limit", "acme", "sessions=2", code=1, **theirs)
    assert "This key lacks the scope fleet:operate." in refused


async def test_policies_on_the_command_line(at: dict[str, str]) -> None:
    table, _ = await sandlot("tenants", "policy", "acme", "validation", **at)
    assert table.splitlines()[1].split("\t")[-1] == "validation"
    key = (await sandlot("keys", "create", "a", "--tenant", "acme", **at))[0].strip()
    theirs = {**at, "SANDLOT_API_KEY": key}
    _, refused = await sandlot("run", "rm -rf /", code=1, **theirs)
    assert "(policy validation, rule " in refused
    _, refused = await sandlot("tenants", "policy", "acme", "validaton", code=1, **at)
    assert "Did you mean 'validation'?" in refused
    assert (await sandlot("tenants", "policy", "acme", "none", "--json", **at))[0].count(
        '"policy": null'
    ) == 1
    await sandlot("run", "rm -rf /x", **theirs)
