"""What a model is told about a job, where the way to the job is slow or the job does not end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from sandlot import AsyncClient, AsyncSession
from sandlot.integrations import toolbox
from sandlot.integrations.toolbox import commands
from sandlot.testing.fake import FakeService


@pytest.fixture
async def service() -> FakeService:
    return FakeService()


@pytest.fixture
async def session(service: FakeService) -> AsyncIterator[AsyncSession]:
    async with AsyncClient(service=service) as client:
        yield await client.create()


@pytest.mark.parametrize("after", ["", "; sleep 60"], ids=["ended", "running"])
async def test_a_slow_connection_is_not_silence(
    session: AsyncSession, service: FakeService, monkeypatch: pytest.MonkeyPatch, after: str
) -> None:
    attach = service.attach_exec

    async def slowly(*args: Any, **named: Any) -> Any:
        await asyncio.sleep(2 * commands.QUIET_S)
        return await attach(*args, **named)

    job = (await toolbox.bash(session, f"echo written{after}", background=True)).data["job"]
    await (await session.exec(job)).status(0 if after else 10)
    monkeypatch.setattr(service, "attach_exec", slowly)
    answer = await toolbox.read_output(session, job)
    assert answer.text.startswith("written\n")
    assert answer.data["running"] == bool(after)
    await toolbox.stop(session, job)


async def test_what_could_not_be_had_is_not_called_nothing(
    session: AsyncSession, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: Any, **__: Any) -> Any:
        await asyncio.Event().wait()

    job = (await toolbox.bash(session, "echo written", background=True)).data["job"]
    monkeypatch.setattr(commands, "READ_TIMEOUT_S", 0.1)
    with monkeypatch.context() as patched:
        patched.setattr(service, "attach_exec", never)
        answer = await toolbox.read_output(session, job)
    assert answer.failed
    assert "Try again" in answer.text


async def test_what_has_not_ended_is_not_called_stopped(
    session: AsyncSession, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def deaf(*_: Any, **__: Any) -> int:
        return 1

    job = (await toolbox.bash(session, "sleep 60", background=True)).data["job"]
    with monkeypatch.context() as patched:
        patched.setattr(service, "kill_exec", deaf)
        patched.setattr(commands, "STOP_TIMEOUT_S", 0.1)
        answer = await toolbox.stop(session, job)
    assert "may still be running" in answer.text
    assert "was stopped" in (await toolbox.stop(session, job)).text
