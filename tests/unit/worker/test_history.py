"""What a worker records of sessions, commands and files, on a scripted engine."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from tests.owned import OwnWorker
from tests.unit.worker.conftest import Scene

from sandlot.domain.callers.principal import OWNER, Principal
from sandlot.domain.errors import Unavailable, Unsupported
from sandlot.domain.execution import ExecRequest
from sandlot.domain.history.events import Event
from sandlot.domain.history.query import EventQuery
from sandlot.domain.session import CreateSession, SessionState
from sandlot.testing.eventually import eventually
from sandlot.worker.history import exec_ends
from sandlot.worker.history.options import HistoryOptions

ADA = Principal("acme", key_id="keyofada", subject="ada")


async def events_of(worker: OwnWorker, caller: Principal = OWNER, **asked: Any) -> list[Event]:
    return list((await worker.acting_for(caller).list_events(EventQuery(**asked, limit=1000))).events)


async def kinds_of(worker: OwnWorker, caller: Principal = OWNER, **asked: Any) -> list[str]:
    return [event.kind for event in await events_of(worker, caller, **asked)]


async def test_the_life_of_a_session(scene: Scene) -> None:
    worker = await scene.start()
    service = worker.acting_for(ADA)
    session = (await service.create_session(CreateSession(thread="t1", env={"TOKEN": "hunter22"}))).session
    await service.execute(session.id, ExecRequest(command="login hunter22", exec_id="e1"))
    await service.delete_session(session.id)
    events = await events_of(worker, ADA, session_id=session.id)
    assert [event.kind for event in events] == [
        "session.created",
        "session.claimed",
        "exec.started",
        "exec.ended",
        "session.ended",
    ]
    assert {(event.tenant, event.thread, event.key_id, event.subject) for event in events} == {
        ("acme", "t1", "keyofada", "ada")
    }
    assert events[1].details == {"sandbox_id": session.sandbox_id, "generation": 1}
    assert events[2].details == {"generation": 1, "command": "login ***"}
    assert events[3].details["verdict"] == "ok"
    assert events[4].details == {"reason": "deleted"}
    assert await events_of(worker, ADA, thread="t1") == events
    assert await events_of(worker) == []  # another tenant's


async def test_an_exec_asked_for_again_is_recorded_once(scene: Scene) -> None:
    worker = await scene.start()
    session = (await worker.create_session(CreateSession())).session
    request = ExecRequest(command="once", exec_id="e1")
    for _ in range(3):
        await worker.execute(session.id, request)
    await worker.get_exec(session.id, "e1", wait_s=5)
    assert (await kinds_of(worker, session_id=session.id))[2:] == ["exec.started", "exec.ended"]


async def test_a_command_that_nobody_waits_for_gets_its_end(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandlot.worker.service.FOLLOW_AFTER_S", 0.0)
    worker = await scene.start()
    session = (await worker.create_session(CreateSession())).session
    await (await worker.start_exec(session.id, ExecRequest(command="wait", exec_id="left"))).detach()
    waiting = asyncio.create_task(worker.execute(session.id, ExecRequest(command="wait", exec_id="gone")))
    assert session.sandbox_id is not None
    sandbox = scene.engine.sandboxes[session.sandbox_id]
    await eventually(lambda: _true("gone" in sandbox.execs), 10, "started")
    waiting.cancel()
    await asyncio.wait({waiting})
    assert "exec.ended" not in await kinds_of(worker)
    for name in ("left", "gone"):
        sandbox.execs[name].done.set()

    async def both_ended() -> bool:
        return (await kinds_of(worker)).count("exec.ended") == 2

    await eventually(both_ended, 10, "both ends are recorded")
    ended = [event for event in await events_of(worker) if event.kind == "exec.ended"]
    assert {event.exec_id: event.details["exit_code"] for event in ended} == {"left": 0, "gone": 0}


async def _true(value: bool) -> bool:
    return value


async def test_an_end_that_cannot_be_seen_is_recorded_as_that(scene: Scene) -> None:
    worker = await scene.start()
    for how in ("lost", "deleted"):
        session = (await worker.create_session(CreateSession())).session
        await (await worker.start_exec(session.id, ExecRequest(command="wait", exec_id="e1"))).detach()
        if how == "lost":
            assert session.sandbox_id is not None
            scene.engine.sandboxes[session.sandbox_id].die("it was killed")

            async def is_lost() -> bool:
                return (await worker.get_session(session.id)).state is SessionState.LOST  # noqa: B023

            await eventually(is_lost, 10, "lost")
        else:
            await worker.delete_session(session.id)
        events = {event.kind: event for event in await events_of(worker, session_id=session.id)}
        assert set(events["exec.ended"].details) == {"unseen"}
        assert ("session.lost" in events) == (how == "lost")
        if how == "lost":
            assert events["session.lost"].details == {"generation": 1, "reason": "it was killed"}
            recreated = await worker.recreate_session(session.id)
            last = (await events_of(worker, session_id=session.id))[-1]
            assert (last.kind, last.details["sandbox_id"]) == ("session.claimed", recreated.sandbox_id)
            assert last.details["generation"] == 2


async def test_an_expired_session_has_no_caller(scene: Scene) -> None:
    worker = await scene.start()
    session = (await worker.acting_for(ADA).create_session(CreateSession(idle_timeout_s=0.05))).session

    async def has_ended() -> bool:
        return "session.ended" in await kinds_of(worker, ADA, session_id=session.id)

    await eventually(has_ended, 10, "ended")
    last = (await events_of(worker, ADA, session_id=session.id))[-1]
    assert (last.key_id, last.details) == ("", {"reason": "idle"})


async def test_a_restart_records_nothing_twice_and_goes_on(scene: Scene) -> None:
    worker = await scene.start()
    session = (await worker.create_session(CreateSession())).session
    await worker.execute(session.id, ExecRequest(command="done", exec_id="done"))
    await (await worker.start_exec(session.id, ExecRequest(command="wait", exec_id="runs"))).detach()
    before = await events_of(worker)
    worker = await scene.restart(worker)
    assert await events_of(worker) == before
    # The same request again, as a client sends it whose answer was lost.
    await worker.execute(session.id, ExecRequest(command="done", exec_id="done"))
    assert session.sandbox_id is not None
    scene.engine.sandboxes[session.sandbox_id].execs["runs"].done.set()

    async def has_ended() -> bool:
        return len(await events_of(worker)) > len(before)

    await eventually(has_ended, 10, "the end is recorded")
    after = await events_of(worker)
    assert after[: len(before)] == before
    assert [(event.kind, event.exec_id) for event in after[len(before) :]] == [("exec.ended", "runs")]


async def test_a_sandbox_lost_during_a_restart_ends_its_commands(scene: Scene) -> None:
    worker = await scene.start()
    session = (await worker.create_session(CreateSession())).session
    await (await worker.start_exec(session.id, ExecRequest(command="wait", exec_id="runs"))).detach()
    assert session.sandbox_id is not None
    await worker.close()
    scene.lives.remove(worker)
    del scene.engine.sandboxes[session.sandbox_id]
    worker = await scene.start()

    async def is_recorded() -> bool:
        return (await kinds_of(worker, session_id=session.id))[-2:] == ["session.lost", "exec.ended"]

    await eventually(is_recorded, 10, "the loss and the end are recorded")


async def test_a_follower_hears_of_the_next_event(scene: Scene) -> None:
    worker = await scene.start()
    session = (await worker.create_session(CreateSession())).session
    first = await worker.list_events(EventQuery())
    following = asyncio.create_task(worker.list_events(EventQuery(after=first.next, wait_s=30)))
    other = asyncio.create_task(worker.acting_for(ADA).list_events(EventQuery(wait_s=0.3)))
    await worker.execute(session.id, ExecRequest(command="now"))
    page = await asyncio.wait_for(following, 10)
    assert page.events[0].kind == "exec.started"
    assert (await other).events == ()


async def test_a_follower_does_not_wait_for_a_worker_that_has_closed(scene: Scene) -> None:
    worker = await scene.start()
    following = asyncio.create_task(worker.list_events(EventQuery(wait_s=0.5)))
    await asyncio.sleep(0)
    await worker.close()
    scene.lives.remove(worker)
    with contextlib.suppress(Unavailable):  # told so, if it was just reading
        assert (await asyncio.wait_for(following, 10)).events == ()
    with pytest.raises(Unavailable, match="shutting down"):
        await worker.list_events(EventQuery())


async def test_history_can_be_turned_off(scene: Scene) -> None:
    worker = await scene.start(history=HistoryOptions(enabled=False))
    session = (await worker.create_session(CreateSession())).session
    await worker.execute(session.id, ExecRequest(command="unseen"))
    with pytest.raises(Unsupported, match="SANDLOT_HISTORY"):
        await worker.list_events(EventQuery())
    assert not (scene.database.parent / "history.sqlite3").exists()


async def test_commands_can_be_hashed(scene: Scene) -> None:
    worker = await scene.start(history=HistoryOptions(commands="hashed"))
    session = (await worker.create_session(CreateSession())).session
    for _ in range(2):
        await worker.execute(session.id, ExecRequest(command="secret plan"))
    first, second = (event for event in await events_of(worker) if event.kind == "exec.started")
    assert first.details["command_digest"] == second.details["command_digest"]
    await worker.close()
    scene.lives.remove(worker)
    assert b"secret plan" not in (scene.database.parent / "history.sqlite3").read_bytes()


async def test_a_follower_ends_with_the_worker(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandlot.worker.service.FOLLOW_AFTER_S", 0.0)
    monkeypatch.setattr(exec_ends, "FIRST_PAUSE_S", 0.01)
    worker = await scene.start()
    session = (await worker.create_session(CreateSession())).session
    await (await worker.start_exec(session.id, ExecRequest(command="wait"))).detach()
    await worker.close()
    scene.lives.remove(worker)
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("follow ")]
