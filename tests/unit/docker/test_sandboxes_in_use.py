"""What a provider's creates, adoptions and removals leave behind when they fail or meet."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Container

import pytest

from sandlot.domain.errors import EngineProblem, ImageMissing, SandboxLost
from sandlot.providers.sandboxes_in_use import SandboxesInUse


class Held:
    def __init__(self, sandbox_id: str = "sbx") -> None:
        self.id = sandbox_id
        self.lost_by: str | None = None
        self.closed = False

    def mark_lost(self, reason: str) -> None:
        self.lost_by = reason

    async def close(self) -> None:
        self.closed = True


class Engine:
    """Notes what is removed. A removal waits for ``may_remove``."""

    def __init__(self) -> None:
        self.removed: list[tuple[str, Container[str]]] = []
        self.removing = asyncio.Event()
        self.may_remove = asyncio.Event()
        self.may_remove.set()
        self.in_use: SandboxesInUse[Held] = SandboxesInUse(self._remove)

    async def _remove(self, sandbox_id: str, keep: Container[str]) -> None:
        self.removing.set()
        await self.may_remove.wait()
        self.removed.append((sandbox_id, keep))


async def test_a_failed_create_is_removed_but_not_its_workspace() -> None:
    engine = Engine()
    made = Held()

    async def create() -> None:
        async with engine.in_use.creating("sbx"), engine.in_use.removed_on_failure("sbx", ("ws",)):
            engine.in_use.by_id["sbx"] = made
            raise EngineProblem("no agent")

    with pytest.raises(EngineProblem, match="no agent"):
        await create()
    assert engine.removed == [("sbx", ("ws",))]
    assert (made.lost_by, made.closed) == ("the sandbox was destroyed", True)
    assert not engine.in_use.by_id


async def test_what_fails_before_it_makes_anything_removes_nothing() -> None:
    """The id may be another sandbox's."""
    engine = Engine()
    with pytest.raises(EngineProblem, match="make sandbox sbx"):
        async with engine.in_use.creating("sbx"):
            raise FileExistsError(17, "File exists")
    assert engine.removed == []


async def test_a_create_that_is_cancelled_twice_is_removed_all_the_same() -> None:
    engine = Engine()
    engine.may_remove.clear()

    async def create() -> None:
        async with engine.in_use.creating("sbx"), engine.in_use.removed_on_failure("sbx"):
            await asyncio.Event().wait()

    creating = asyncio.create_task(create())
    await asyncio.sleep(0)
    creating.cancel()
    await engine.removing.wait()
    creating.cancel()
    engine.may_remove.set()
    with pytest.raises(asyncio.CancelledError):
        await creating
    assert engine.removed == [("sbx", ())]


async def test_many_callers_take_a_sandbox_over_once() -> None:
    engine = Engine()
    taken = 0

    async def take_over(sandbox_id: str) -> Held:
        nonlocal taken
        taken += 1
        async with engine.in_use.entering(sandbox := Held(sandbox_id)):
            await asyncio.sleep(0)
        return sandbox

    first, second = await asyncio.gather(*(engine.in_use.adopt("sbx", take_over) for _ in range(2)))
    assert first is second is await engine.in_use.adopt("sbx", take_over)
    assert taken == 1


async def test_a_failed_adoption_releases_the_sandbox_and_can_be_repeated() -> None:
    engine = Engine()
    made: list[Held] = []

    async def take_over(sandbox_id: str) -> Held:
        made.append(Held(sandbox_id))
        async with engine.in_use.entering(made[-1]):
            if len(made) == 1:
                raise EngineProblem("no answer", retryable=True)
        return made[-1]

    with pytest.raises(EngineProblem, match="no answer"):
        await engine.in_use.adopt("sbx", take_over)
    assert made[0].closed
    assert not engine.in_use.by_id
    assert await engine.in_use.adopt("sbx", take_over) is made[1]
    assert engine.removed == []  # it runs on, for the next worker


async def test_a_sandbox_that_is_being_destroyed_is_not_taken_over() -> None:
    engine = Engine()
    engine.may_remove.clear()
    destroying = asyncio.create_task(engine.in_use.destroy("sbx"))
    await engine.removing.wait()
    with pytest.raises(SandboxLost, match="destroyed"):
        async with engine.in_use.entering(Held()):
            raise AssertionError("entered")
    engine.may_remove.set()
    await destroying


async def test_a_clean_up_that_fails_hides_neither_the_error_nor_the_cancellation() -> None:
    async def remove(sandbox_id: str, keep: Container[str]) -> None:
        raise OSError(24, "Too many open files")

    in_use: SandboxesInUse[Held] = SandboxesInUse(remove)

    async def create(work: Awaitable[None]) -> None:
        async with in_use.creating("sbx"), in_use.removed_on_failure("sbx"):
            await work

    async def fail() -> None:
        raise ImageMissing("gone")

    with pytest.raises(ImageMissing):
        await create(fail())
    creating = asyncio.create_task(create(asyncio.sleep(3600)))
    await asyncio.sleep(0)
    creating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await creating


async def test_close_releases_what_appears_while_it_closes_the_rest() -> None:
    engine = Engine()
    created, closing = asyncio.Event(), asyncio.Event()

    class Slow(Held):
        async def close(self) -> None:
            closing.set()
            await created.wait()

    async def create() -> None:
        async with engine.in_use.creating("late"), engine.in_use.removed_on_failure("late"):
            await closing.wait()
            engine.in_use.by_id["late"] = late
        created.set()

    late = Held("late")
    engine.in_use.by_id["slow"] = Slow("slow")
    creating = asyncio.create_task(create())
    await asyncio.sleep(0)
    await engine.in_use.close()
    await creating
    assert (late.closed, late.lost_by) == (True, None)


async def test_close_waits_for_creates_and_leaves_sandboxes_running() -> None:
    engine = Engine()
    running = engine.in_use.by_id["other"] = Held("other")
    finish = asyncio.Event()

    async def create() -> None:
        async with engine.in_use.creating("sbx"), engine.in_use.removed_on_failure("sbx"):
            await finish.wait()
            raise EngineProblem("the link is closed")

    creating = asyncio.create_task(create())
    await asyncio.sleep(0)
    closing = asyncio.create_task(engine.in_use.close())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not closing.done()
    finish.set()
    await closing
    with pytest.raises(EngineProblem):
        await creating
    assert engine.removed == [("sbx", ())]
    assert (running.closed, running.lost_by) == (True, None)
