"""Recordings of a fleet: a coordinator passes them on from the worker that has them."""

from __future__ import annotations

import pytest

from sandlot.domain.callers.principal import Principal
from sandlot.domain.errors import NotFound, Unavailable
from sandlot.domain.execution import ExecRequest
from sandlot.domain.ids import new_session_id
from sandlot.domain.service import SandboxService
from sandlot.domain.session import CreateSession
from sandlot.fleet.coordinator import asked_workers
from sandlot.testing.asciicast import parse_asciicast
from tests.fleet.fakes import TIMINGS, Scene, nobody


async def shown(service: SandboxService, session_id: str) -> str:
    return parse_asciicast(b"".join([piece async for piece in service.read_recording(session_id)])).shown


async def on_both(scene: Scene) -> dict[str, str]:
    """A recorded session on each worker, by the worker's name. The directory does not know it."""
    sessions = {}
    for name, worker in scene.workers.items():
        session = (await worker.create_session(CreateSession(record=True))).session
        await worker.execute(session.id, ExecRequest(command=f"echo on {name}"))
        sessions[name] = session.id
    return sessions


async def test_a_session_is_recorded_through_the_coordinator(scene: Scene) -> None:
    session = (await scene.coordinator.create_session(CreateSession(record=True))).session
    assert session.record
    [listed] = (await scene.coordinator.list_sessions()).sessions
    assert listed.record
    await scene.coordinator.execute(session.id, ExecRequest(command="echo hi"))
    await scene.coordinator.delete_session(session.id)
    assert await shown(scene.coordinator, session.id) == "$ echo hi\r\nhi\r\n"
    stranger = scene.coordinator.acting_for(Principal("stranger"))
    with pytest.raises(NotFound):
        await shown(stranger, session.id)


async def test_a_session_that_the_directory_has_forgotten_is_looked_for(scene: Scene) -> None:
    for name, session_id in (await on_both(scene)).items():
        assert await shown(scene.coordinator, session_id) == f"$ echo on {name}\r\non {name}\r\n"
    for unknown in (new_session_id(), "nonsense"):
        with pytest.raises(NotFound):
            await shown(scene.coordinator, unknown)


@pytest.mark.parametrize("gone", [False, True])
async def test_a_worker_that_does_not_answer_is_named(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, gone: bool
) -> None:
    sessions = await on_both(scene)
    if gone:
        await scene.pass_time(TIMINGS.lease_s + TIMINGS.lost_after_s + 1, silent=("w2",))
    else:
        await scene.join("w2", nobody())
    monkeypatch.setattr(asked_workers, "FRESH_S", 0.0)
    assert "on w1" in await shown(scene.coordinator, sessions["w1"])
    with pytest.raises(Unavailable, match="w2") as raised:
        await shown(scene.coordinator, sessions["w2"])
    assert raised.value.retryable
