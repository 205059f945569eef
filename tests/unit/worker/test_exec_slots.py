"""A limit of commands at once, on a worker: never one too many, and each slot is free again after its end."""

from __future__ import annotations

import asyncio

import pytest
from tests.owned import OwnWorker
from tests.unit.worker.conftest import Scene
from tests.unit.worker.scripted import ScriptedExec
from tests.unit.worker.test_quotas import ACME, OTHER_KEY, STRANGER, Book

from sandlot.domain.callers.limits import CallerLimits
from sandlot.domain.callers.principal import Principal
from sandlot.domain.errors import Busy, SandboxLost, SandlotError
from sandlot.domain.execution import ExecRequest
from sandlot.domain.session import CreateSession
from sandlot.testing.eventually import eventually
from sandlot.worker.history import exec_ends
from sandlot.worker.history.options import HistoryOptions

LIMIT = 3


@pytest.fixture(autouse=True)
def quick_followers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandlot.worker.service.FOLLOW_AFTER_S", 0.0)
    monkeypatch.setattr(exec_ends, "FIRST_PAUSE_S", 0.01)


class Runner:
    """One session of a caller, and its commands."""

    def __init__(self, scene: Scene, worker: OwnWorker, caller: Principal, session_id: str) -> None:
        self.scene = scene
        self.worker = worker
        self.service = worker.acting_for(caller)
        self.session_id = session_id

    @classmethod
    async def of(cls, scene: Scene, worker: OwnWorker, caller: Principal = ACME) -> Runner:
        opened = await worker.acting_for(caller).create_session(CreateSession())
        return cls(scene, worker, caller, opened.session.id)

    async def start(self, exec_id: str, command: str = "wait") -> None:
        await (
            await self.service.start_exec(self.session_id, ExecRequest(command=command, exec_id=exec_id))
        ).detach()

    async def run(self, exec_id: str) -> None:
        await self.service.execute(self.session_id, ExecRequest(command="quick", exec_id=exec_id))

    async def started(self, exec_id: str) -> ScriptedExec:
        sandbox_id = (await self.service.get_session(self.session_id)).sandbox_id
        assert sandbox_id is not None
        return self.scene.engine.sandboxes[sandbox_id].execs[exec_id]

    async def finish(self, exec_id: str) -> None:
        (await self.started(exec_id)).done.set()

    async def full(self) -> None:
        with pytest.raises(Busy) as refused:
            await self.run("one-too-many")
        assert refused.value.details == {"reason": "quota", "limit": "execs", "at_most": LIMIT}
        assert refused.value.retryable
        assert refused.value.retry_after_s
        assert not refused.value.may_have_executed

    async def free(self, exec_id: str = "once-free") -> None:
        async def runs() -> bool:
            try:
                await self.run(exec_id)
            except Busy:
                return False
            return True

        await eventually(runs, 10, "a slot is free")


HISTORY = pytest.mark.parametrize("history", [True, False], ids=["history", "no history"])


@HISTORY
async def test_a_crowd_of_commands(scene: Scene, history: bool) -> None:
    book = Book(t_acme=CallerLimits(execs=LIMIT))
    worker = await scene.start(allowances=book, history=HistoryOptions(enabled=history))
    one, two = await Runner.of(scene, worker), await Runner.of(scene, worker, OTHER_KEY)
    answers = await asyncio.gather(
        *([one, two][number % 2].start(f"e{number}") for number in range(60)), return_exceptions=True
    )
    begun = [number for number, answer in enumerate(answers) if answer is None]
    assert len(begun) == LIMIT
    assert all(isinstance(answer, Busy) for answer in answers if answer is not None)
    await one.full()
    await two.full()
    await (await Runner.of(scene, worker, STRANGER)).run("other-tenant")
    number = begun[0]
    await [one, two][number % 2].finish(f"e{number}")  # nobody reads it
    await one.free()
    # A command that was waited for is free at once, for as long as one likes.
    for number in range(10):
        await two.run(f"again-{number}")


async def test_a_keys_own_limit(scene: Scene) -> None:
    worker = await scene.start(allowances=Book(k_k1=CallerLimits(execs=1), t_acme=CallerLimits(execs=2)))
    one, two = await Runner.of(scene, worker), await Runner.of(scene, worker, OTHER_KEY)
    await one.start("a")
    with pytest.raises(Busy, match="API key k1 may run 1 command at once"):
        await one.run("b")
    await two.start("c")
    with pytest.raises(Busy, match="Tenant acme may run 2 commands at once"):
        await two.run("d")


async def test_no_commands_at_all(scene: Scene) -> None:
    worker = await scene.start(allowances=Book(t_acme=CallerLimits(execs=0)))
    with pytest.raises(Busy, match="may run 0 commands at once") as refused:
        await (await Runner.of(scene, worker)).run("a")
    assert not refused.value.retryable


async def test_the_same_command_again_has_its_slot(scene: Scene) -> None:
    worker = await scene.start(allowances=Book(t_acme=CallerLimits(execs=LIMIT)))
    one = await Runner.of(scene, worker)
    for exec_id in ("a", "b", "c"):
        await one.start(exec_id)
    for _ in range(3):
        await one.start("a")
    await one.full()
    await one.finish("a")
    await one.free()
    # Asked for once more, it has ended, and leaves nothing behind.
    await one.start("a")
    await one.free("later")


@HISTORY
@pytest.mark.parametrize("how", ["cancelled", "lost", "deleted"])
async def test_left_early(scene: Scene, how: str, history: bool) -> None:
    book = Book(t_acme=CallerLimits(execs=LIMIT))
    worker = await scene.start(allowances=book, history=HistoryOptions(enabled=history))
    one, two = await Runner.of(scene, worker), await Runner.of(scene, worker)
    waiting = [
        asyncio.create_task(
            one.service.execute(one.session_id, ExecRequest(command="wait", exec_id=f"e{number}"))
        )
        for number in range(LIMIT)
    ]

    async def begun() -> bool:
        try:
            return all([await one.started(f"e{number}") for number in range(LIMIT)])
        except KeyError:
            return False

    await eventually(begun, 10, "they run")
    await two.full()
    if how == "cancelled":
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        await two.full()  # nobody waits for them, but they run
        for number in range(LIMIT):
            await one.finish(f"e{number}")
    elif how == "lost":
        sandbox_id = (await one.service.get_session(one.session_id)).sandbox_id
        assert sandbox_id is not None
        scene.engine.sandboxes[sandbox_id].die("a test")
    else:
        await one.service.delete_session(one.session_id)
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(answer, SandlotError | asyncio.CancelledError) for answer in answers)
    await two.free()
    for number in range(LIMIT):  # all of them
        await two.start(f"new-{number}")


async def test_a_start_that_fails(scene: Scene) -> None:
    worker = await scene.start(allowances=Book(t_acme=CallerLimits(execs=LIMIT)))
    one, two = await Runner.of(scene, worker), await Runner.of(scene, worker)
    sandbox_id = (await one.service.get_session(one.session_id)).sandbox_id
    assert sandbox_id is not None
    scene.engine.sandboxes[sandbox_id].die("a test")
    for number in range(2 * LIMIT):
        with pytest.raises(SandboxLost):
            await one.run(f"e{number}")
    for number in range(LIMIT):
        await two.start(f"new-{number}")
    await two.full()


async def test_a_restart(scene: Scene) -> None:
    """What an earlier process has started counts, and ends."""
    book = Book(t_acme=CallerLimits(execs=LIMIT))
    worker = await scene.start(allowances=book)
    one = await Runner.of(scene, worker)
    for number in range(LIMIT):
        await one.start(f"e{number}")
    worker = await scene.restart(worker, allowances=book)
    again = Runner(scene, worker, ACME, one.session_id)
    await again.full()
    await again.finish("e0")
    await again.free()
