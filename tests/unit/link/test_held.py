"""S7: what an agent lists is counted while it is read, by the memory that it takes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.unit.link.test_files import entry

from sandlot.domain.capacity.budget import FREE_BYTES, Account, ByteBudget, current_account
from sandlot.domain.errors import Busy, SandboxQuarantined
from sandlot.providers.link import sandbox_agent

KIB = 1024
# One character decides that each of them takes four bytes.
LONG = "d" * 3000 + "\N{CRICKET}"
BUDGET = 600 * KIB


@pytest.fixture
async def account() -> AsyncIterator[Account]:
    budget = ByteBudget(BUDGET)
    budget.acquire(100 * KIB)  # somebody else's: who is alone gets all, and is never refused
    account = Account(budget)
    token = current_account.set(account)
    yield account
    current_account.reset(token)


async def listing(scene: Any, core: Any) -> Any:
    opening = asyncio.create_task(scene.link.files())
    helper = await scene.files(core)
    await opening
    return helper


def deep(first: int) -> dict[str, Any]:
    """A message of 50 KiB, of which 200 come of memory."""
    return {"entries": [entry(str(number), path=LONG + str(number)) for number in range(first, first + 16)]}


async def test_s7_walk_is_counted_by_its_memory_while_it_is_read(scene: Any, account: Account) -> None:
    helper = await listing(scene, await scene.core())
    walking = asyncio.create_task(scene.agent.files.walk("."))
    number, _ = await helper.request()
    for first in (0, 16, 32, 48):  # 200 KiB in all
        helper.message(number, deep(first))
    # No end: it is refused while more could come.
    with pytest.raises(Busy):
        await asyncio.wait_for(walking, 10)
    assert account.held == 0


async def test_s7_walk_that_is_asked_for_again_is_counted_once(scene: Any, account: Account) -> None:
    core = await scene.core()
    helper = await listing(scene, core)
    walking = asyncio.create_task(scene.agent.files.walk("."))
    number, _ = await helper.request()
    helper.message(number, deep(0))
    helper.message(number, deep(16))
    async with asyncio.timeout(10):
        while account.held < 300 * KIB:
            await asyncio.sleep(0)
    helper.close()  # a command has killed it
    helper = await scene.files(core)
    number, _ = await helper.request()
    helper.message(number, deep(0))
    helper.message(number, {**deep(16), "truncated": False})
    helper.end(number)
    assert len((await walking).entries) == 32
    assert 300 * KIB < account.held < FREE_BYTES + BUDGET


async def test_s7_lists_of_execs_are_counted_and_bounded(
    scene: Any, account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = await scene.core()

    def execs(first: int) -> dict[str, Any]:
        states = [
            {"exec_id": str(number), "state": "exited", "command": LONG[-200:]}
            for number in range(first, first + 200)
        ]
        return {"execs": states}

    reading = asyncio.create_task(scene.agent.list_execs())
    number, _ = await core.request()
    for first in (0, 200, 400, 600):
        core.message(number, execs(first))
    with pytest.raises(Busy):
        await asyncio.wait_for(reading, 10)

    monkeypatch.setattr(sandbox_agent, "MAX_EXECS", 100)
    reading = asyncio.create_task(scene.agent.list_execs())
    number, _ = await core.request()
    core.message(number, execs(0))
    with pytest.raises(SandboxQuarantined):
        await asyncio.wait_for(reading, 10)
