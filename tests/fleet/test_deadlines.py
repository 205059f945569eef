"""O1: a coordinator waits for a worker's answer no longer than the worker has for it, and the way there."""

from __future__ import annotations

import asyncio
import time

import pytest

from sandlot.domain.callers.principal import OWNER
from sandlot.domain.errors import LinkInterrupted, SandboxUnresponsive
from sandlot.domain.execution import ExecRequest
from sandlot.domain.session import CreateSession, SessionState
from sandlot.fleet.coordinator import options
from sandlot.fleet.coordinator.options import CoordinatorOptions
from tests.fleet.fakes import Scene


async def test_o1_worker_that_never_answers_an_exec(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "HOP_S", 0.2)

    async def never(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    coordinator = scene.another(CoordinatorOptions(exec_grace_s=0.3))
    session = (await coordinator.create_session(CreateSession())).session
    for worker in scene.workers.values():
        monkeypatch.setattr(worker, "execute", never)
        monkeypatch.setattr(worker, "list_execs", never)
        monkeypatch.setattr(worker, "get_exec", never)
    began = time.monotonic()
    with pytest.raises(LinkInterrupted) as caught:
        await asyncio.wait_for(coordinator.execute(session.id, ExecRequest("true", timeout_s=0.5)), 30)
    assert 0.9 < time.monotonic() - began < 20
    assert caught.value.may_have_executed
    for call in (coordinator.list_execs(session.id), coordinator.get_exec(session.id, "e", wait_s=0.1)):
        with pytest.raises(LinkInterrupted):
            await asyncio.wait_for(call, 20)


async def test_o1_what_a_worker_says_of_a_silent_sandbox_is_passed_on(scene: Scene) -> None:
    session = (await scene.coordinator.create_session(CreateSession())).session
    scene.workers["w1"].freeze(session.id)
    with pytest.raises(SandboxUnresponsive):
        await asyncio.wait_for(scene.coordinator.execute(session.id, ExecRequest("true")), 20)
    shown = await scene.coordinator.get_session(session.id)
    assert shown.state is SessionState.UNRESPONSIVE
    assert scene.coordinator.access(OWNER, shown) is not None  # who asks the worker itself hears the same
