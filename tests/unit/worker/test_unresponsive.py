"""O1: a sandbox that does not answer ends no call late, is told of, and is used again when it answers. R7 too."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import pytest
from tests.unit.worker.conftest import OwnWorker, Scene
from tests.unit.worker.scripted import ScriptedSandbox

from sandlot.domain.computer import ExecSummary
from sandlot.domain.errors import SandboxUnresponsive
from sandlot.domain.execution import ExecRequest
from sandlot.domain.session import CreateSession, Session, SessionState
from sandlot.testing.eventually import eventually
from sandlot.worker import options
from sandlot.worker.sessions import responsiveness


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responsiveness, "ASK_EVERY_S", 0.02)
    monkeypatch.setattr(responsiveness, "ANSWER_WITHIN_S", 0.05)


async def _session(scene: Scene, worker: OwnWorker) -> tuple[Session, ScriptedSandbox]:
    session = (await worker.create_session(CreateSession(thread="t"))).session
    assert session.sandbox_id is not None
    return session, scene.engine.sandboxes[session.sandbox_id]


async def _state(worker: OwnWorker, session: Session) -> SessionState:
    return (await worker.get_session(session.id)).state


async def test_o1_exec_ends_after_its_timeout_and_the_grace(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(responsiveness, "UNANSWERED", 10**6)  # nobody finds out before
    worker = await scene.start(exec_grace_s=0.2)
    session, sandbox = await _session(scene, worker)
    sandbox.awake.clear()
    began = time.monotonic()
    with pytest.raises(SandboxUnresponsive, match=r"within 0\.4 s") as caught:
        await worker.execute(session.id, ExecRequest(command="x", timeout_s=0.2))
    assert 0.3 < time.monotonic() - began < 10
    assert (caught.value.retryable, caught.value.may_have_executed) == (True, True)
    for call in (
        worker.list_execs(session.id),
        worker.kill_exec(session.id, "e"),
        worker.attach_exec(session.id, "e"),
        worker.get_exec(session.id, "e"),
        worker.get_exec(session.id, "e", wait_s=5),
    ):
        with pytest.raises(SandboxUnresponsive, match=r"within 0\.2 s"):
            await asyncio.wait_for(call, 10)


async def test_o1_exec_whose_timeout_is_over_waits_for_no_silent_sandbox(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One unanswered question is enough by then: the grace is for sandboxes that answer, and are slow."""
    monkeypatch.setattr(responsiveness, "UNANSWERED", 10**6)
    monkeypatch.setattr(options, "OVERDUE_S", 0.2)
    worker = await scene.start(exec_grace_s=600)
    session, sandbox = await _session(scene, worker)
    sandbox.awake.clear()
    with pytest.raises(SandboxUnresponsive, match="no longer answers") as caught:
        await asyncio.wait_for(
            worker.execute(session.id, ExecRequest(command="x", exec_id="e", timeout_s=0.1)), 30
        )
    assert (caught.value.retryable, caught.value.may_have_executed) == (True, True)
    # A slow one, which answers all questions, is waited for.
    monkeypatch.setattr(responsiveness, "ANSWER_WITHIN_S", 5)
    sandbox.awake.set()
    live = next(iter(worker._sessions.table))
    await eventually(lambda: live.unanswered == 0)  # what it left before is not held against it any more
    waiting = asyncio.create_task(
        worker.execute(session.id, ExecRequest(command="wait", exec_id="slow", timeout_s=0.1))
    )
    await eventually(lambda: "slow" in sandbox.execs)
    await asyncio.wait([waiting], timeout=1)
    assert not waiting.done()
    # Until it leaves one without an answer.
    monkeypatch.setattr(responsiveness, "ANSWER_WITHIN_S", 0.05)
    sandbox.awake.clear()
    with pytest.raises(SandboxUnresponsive, match="no longer answers"):
        await asyncio.wait_for(waiting, 30)
    sandbox.awake.set()


async def test_o1_unresponsive_is_seen_refuses_at_once_and_recovers(scene: Scene) -> None:
    worker = await scene.start()
    session, sandbox = await _session(scene, worker)
    running = asyncio.create_task(worker.execute(session.id, ExecRequest(command="wait", exec_id="e")))
    await eventually(lambda: sandbox.execs)
    sandbox.awake.clear()
    with pytest.raises(SandboxUnresponsive) as caught:  # long before its timeout
        await asyncio.wait_for(running, 10)
    assert caught.value.may_have_executed
    assert await _state(worker, session) is SessionState.UNRESPONSIVE
    assert (await worker.list_sessions()).sessions[0].state is SessionState.UNRESPONSIVE
    found = await worker.create_session(CreateSession(thread="t"))
    assert (found.created, found.session.state) == (False, SessionState.UNRESPONSIVE)
    assert any(session.id in problem for problem in (await worker.health()).problems)
    with pytest.raises(SandboxUnresponsive, match="recreate") as refused:
        await worker.execute(session.id, ExecRequest(command="x"))
    assert not refused.value.may_have_executed
    sandbox.awake.set()

    async def active() -> bool:
        return await _state(worker, session) is SessionState.ACTIVE

    await eventually(active)
    sandbox.execs["e"].done.set()
    status = await worker.get_exec(session.id, "e", wait_s=5)
    assert status.result is not None
    assert status.result.exit_code == 0
    assert (await worker.health()).problems == ()


async def test_o1_readers_are_told(scene: Scene) -> None:
    worker = await scene.start()
    session, sandbox = await _session(scene, worker)
    execution = await worker.start_exec(session.id, ExecRequest(command="wait"))
    events = execution.events()
    await anext(events)
    reading = asyncio.ensure_future(anext(events))
    sandbox.awake.clear()
    with pytest.raises(SandboxUnresponsive):
        await asyncio.wait_for(reading, 10)


async def test_o1_idle_session_is_not_asked(scene: Scene) -> None:
    worker = await scene.start()
    session, sandbox = await _session(scene, worker)
    sandbox.awake.clear()
    await asyncio.sleep(0.5)
    assert await _state(worker, session) is SessionState.ACTIVE


async def test_o1_recreate_gives_the_silent_one_up(scene: Scene) -> None:
    worker = await scene.start()
    session, sandbox = await _session(scene, worker)
    sandbox.awake.clear()
    with pytest.raises(SandboxUnresponsive):
        await asyncio.wait_for(worker.execute(session.id, ExecRequest(command="x")), 10)
    anew = await worker.recreate_session(session.id)
    assert (anew.state, anew.generation) == (SessionState.ACTIVE, 2)
    assert anew.loss is not None
    assert "did not answer" in anew.loss.reason
    assert (await worker.execute(session.id, ExecRequest(command="x"))).generation == 2
    await eventually(lambda: sandbox.id in scene.engine.destroyed)


async def test_o1_waiting_for_a_shell_is_not_silence(scene: Scene) -> None:
    """A command in a shell waits for its turn, however long that is: its timeout begins then."""
    worker = await scene.start(exec_grace_s=0.05)
    session, _ = await _session(scene, worker)
    request = ExecRequest(command="sleep 0.5", timeout_s=0.1, shell="s")
    assert (await worker.execute(session.id, request)).exit_code == 0


async def test_r7_exec_that_starts_between_is_running(scene: Scene) -> None:
    worker = await scene.start()
    session, sandbox = await _session(scene, worker)

    async def none_yet() -> Sequence[ExecSummary]:
        await sandbox.start(ExecRequest(command="wait", exec_id="e"))
        return []

    sandbox.list_execs = none_yet  # type: ignore[method-assign]
    status = await asyncio.wait_for(worker.get_exec(session.id, "e"), 10)
    assert status.running
