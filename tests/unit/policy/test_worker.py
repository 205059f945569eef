"""A worker's policies: real processes, and an event loop that goes on while one of them is busy."""

from __future__ import annotations

import asyncio

import pytest

from sandlot.bash.budget import Budget
from sandlot.config.registry.policies import shipped_policy
from sandlot.domain.environment import Environment, Recipe
from sandlot.domain.errors import ApprovalRequired, PolicyDenied
from sandlot.domain.execution import ExecRequest
from sandlot.worker.command_policies import CommandPolicies

RECIPES = {
    "free": Recipe(Environment("free", "image")),
    "valid": Recipe(Environment("valid", "image"), policy=shipped_policy("validation")),
    "asked": Recipe(Environment("asked", "image"), policy=shipped_policy("approval")),
}
SLOW = ("a|" * Budget.MAX_BYTES)[: Budget.MAX_BYTES]


@pytest.fixture
async def policies() -> CommandPolicies:
    return CommandPolicies(RECIPES)


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
    running = [process._process for process in policies._processes.values()]
    await policies.close()
    assert len(running) == 2
    assert all(process is not None and process.returncode is not None for process in running)
