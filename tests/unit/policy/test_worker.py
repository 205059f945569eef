"""A worker's policies: real processes, and an event loop that goes on while one of them is busy."""

from __future__ import annotations

import asyncio

import pytest

from sandlot.bash.budget import Budget
from sandlot.config.registry.policies import shipped_policy
from sandlot.domain.environment import Environment, Recipe
from sandlot.domain.errors import ApprovalRequired, PolicyDenied
from sandlot.domain.execution import ExecRequest
from sandlot.domain.policy.policy import CommandPolicy
from sandlot.domain.policy.tenant_policies import TenantPolicies
from sandlot.worker.command_policies import CommandPolicies

RECIPES = {
    "free": Recipe(Environment("free", "image")),
    "valid": Recipe(Environment("valid", "image"), policy=shipped_policy("validation")),
    "asked": Recipe(Environment("asked", "image"), policy=shipped_policy("approval")),
}
SLOW = ("a|" * Budget.MAX_BYTES)[: Budget.MAX_BYTES]


@pytest.fixture
async def policies() -> CommandPolicies:
    return CommandPolicies(RECIPES, TenantPolicies())


async def test_each_environment_has_its_own(policies: CommandPolicies) -> None:
    await policies.open()
    try:
        await policies.check("free", ExecRequest("rm -rf /"), "t")
        await policies.check("valid", ExecRequest("rm -rf build"), "t")
        with pytest.raises(ApprovalRequired, match="deletes folders"):
            await policies.check("asked", ExecRequest("rm -rf build"), "t")
        await policies.check("asked", ExecRequest("rm -rf build", approved=True), "t")
        for approved in (False, True):
            with pytest.raises(PolicyDenied, match="deletes files of the system") as caught:
                await policies.check("valid", ExecRequest(argv=("rm", "-rf", "/"), approved=approved), "t")
            assert caught.value.details["words"] == ["rm", "-rf", "/"]
        with pytest.raises(PolicyDenied, match="loader-variables"):
            await policies.check("valid", ExecRequest("ls", env={"LD_PRELOAD": "x"}), "t")
    finally:
        await policies.close()


async def test_a_slow_text_holds_up_neither_the_loop_nor_another_policy(policies: CommandPolicies) -> None:
    """The slow decision still runs when the others have been made; no time is measured."""
    await policies.open()
    try:
        slow = asyncio.create_task(policies.check("valid", ExecRequest(SLOW), "t"))
        for _ in range(20):
            await policies.check("asked", ExecRequest("ls"), "t")
        assert not slow.done()
        with pytest.raises(ApprovalRequired, match="takes too long"):
            await slow
        await policies.check("valid", ExecRequest("ls"), "t")
    finally:
        await policies.close()


async def test_one_tenants_slow_texts_do_not_come_before_anothers(policies: CommandPolicies) -> None:
    await policies.open()
    try:
        slow = [
            asyncio.create_task(policies.check("valid", ExecRequest(SLOW), "attacker")) for _ in range(30)
        ]
        await asyncio.sleep(0)
        for _ in range(3):
            await policies.check("valid", ExecRequest("ls"), "t")
        # Each waited for one of them at most, and 26 or more are still to come.
        assert sum(task.done() for task in slow) <= 4
        for task in slow:
            task.cancel()
        await asyncio.gather(*slow, return_exceptions=True)
        await policies.check("valid", ExecRequest("ls"), "t")
        assert policies._turns == {}
    finally:
        await policies.close()


async def test_closing_leaves_no_process(policies: CommandPolicies) -> None:
    await policies.open()
    running = [reader.process._process for reader in policies._readers.values()]
    await policies.close()
    assert len(running) == 2
    assert all(process is not None and process.returncode is not None for process in running)


# --- of tenants ---------------------------------------------------------------------------------

NO_LS = CommandPolicy.of(
    {
        "name": "no-ls",
        "description": "x",
        "rules": [
            {"name": "ls", "ruling": "deny", "program": "ls", "reason": "lists files"},
            {"name": "rm", "ruling": "ask", "program": "rm", "reason": "deletes files"},
        ],
    }
)


async def test_both_policies_apply_and_the_stricter_ruling_decides() -> None:
    """The tenant's reader starts with its first command, and no policy of another tenant applies."""
    given: dict[str, str | None] = {}
    policies = CommandPolicies(RECIPES, TenantPolicies({"no-ls": NO_LS}, given.get))
    await policies.open()
    try:
        await policies.check("free", ExecRequest("ls"), "acme")
        assert "no-ls" not in policies._readers
        given["acme"] = "no-ls"
        for environment in ("free", "valid", "asked", "no longer in the registry"):
            with pytest.raises(PolicyDenied, match=r"lists files \(policy no-ls, rule ls\)"):
                await policies.check(environment, ExecRequest("ls", approved=True), "acme")
            await policies.check(environment, ExecRequest("ls"), "other")
        # The environment denies, the tenant's policy asks.
        with pytest.raises(PolicyDenied) as denied:
            await policies.check("valid", ExecRequest("rm -rf /", approved=True), "acme")
        assert denied.value.details["policy"] == "validation"
        # The environment asks, the tenant's policy denies. The error has the findings of both.
        with pytest.raises(PolicyDenied) as denied:
            await policies.check("asked", ExecRequest("rm -rf build; ls", approved=True), "acme")
        assert denied.value.details["policy"] == "no-ls"
        found = [(each["policy"], each["rule"]) for each in denied.value.details["findings"]]
        assert found[0] == ("no-ls", "ls")
        assert {policy for policy, _ in found} == {"no-ls", "approval"}
        # Both ask: the error names the environment's, and one approval is for both.
        with pytest.raises(ApprovalRequired) as asked:
            await policies.check("asked", ExecRequest("rm -rf build"), "acme")
        assert asked.value.details["policy"] == "approval"
        await policies.check("asked", ExecRequest("rm -rf build", approved=True), "acme")
        given["acme"] = None
        await policies.check("free", ExecRequest("ls"), "acme")
    finally:
        await policies.close()
    running = policies._readers["no-ls"].process._process
    assert running is None or running.returncode is not None


async def test_a_policy_that_the_registry_lacks_lets_nothing_run() -> None:
    policies = CommandPolicies(RECIPES, TenantPolicies({"no-ls": NO_LS}, {"acme": "team"}.get))
    try:
        for approved in (False, True):
            with pytest.raises(
                PolicyDenied, match="the registry of this server has no such policy"
            ) as caught:
                await policies.check("free", ExecRequest("true", approved=approved), "acme")
            details = caught.value.details
            assert (details["policy"], details["rule"]) == ("team", "missing_policy")
            assert not caught.value.may_have_executed
        await policies.check("free", ExecRequest("true"), "other")
    finally:
        await policies.close()


async def test_the_same_policy_of_both_decides_once() -> None:
    valid = shipped_policy("validation")
    policies = CommandPolicies(RECIPES, TenantPolicies({valid.name: valid}, {"acme": valid.name}.get))
    try:
        with pytest.raises(PolicyDenied) as caught:
            await policies.check("valid", ExecRequest("rm -rf /"), "acme")
        assert len(caught.value.details["findings"]) == 1
    finally:
        await policies.close()
