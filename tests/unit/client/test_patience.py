"""O4: creates and threads wait for a fleet that heals by itself, and say so; other refusals come at once."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from sandlot import AsyncClient
from sandlot.client.http import HttpService
from sandlot.client.http.retries import creates as opening
from sandlot.client.http.retries import results as until_result
from sandlot.client.http.retries.creates import Patience
from sandlot.client.http.transport.connection import Connection
from sandlot.domain.callers.limits import Allowance, CallerLimits, Use, limit_reached
from sandlot.domain.errors import (
    Busy,
    EngineTimeout,
    InvalidRequest,
    LinkInterrupted,
    SandlotError,
    StorageFull,
    Unavailable,
)
from sandlot.domain.session import CreateSession
from sandlot.fleet.directory import rules

HEALS_AFTER_S = 5.0  # longer than any other call is tried for


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Pauses take no time, but are counted."""
    now = [0.0]

    async def sleep(seconds: float) -> None:
        now[0] += seconds
        await asyncio.sleep(0)

    for module in (opening, until_result):
        monkeypatch.setattr(module, "asyncio", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(opening.Patience.__init__, "__defaults__", (lambda: now[0],))
    return now


def refusing(fake: Any, monkeypatch: pytest.MonkeyPatch, error: Callable[[], SandlotError | None]) -> None:
    create = fake.create_session

    async def create_session(request: CreateSession) -> Any:
        if (refusal := error()) is not None:
            raise refusal
        return await create(request)

    monkeypatch.setattr(fake, "create_session", create_session)


async def made_by_create(client: AsyncClient) -> None:
    await (await client.create()).delete()


async def made_by_thread(client: AsyncClient) -> None:
    await (await client.thread("patient")).delete()


async def made_by_command(client: AsyncClient) -> None:
    assert (await client.run_in_thread("patient", "echo in")).output == "in\n"
    await (await client.thread("patient")).delete()


@pytest.mark.parametrize("make", [made_by_create, made_by_thread, made_by_command])
async def test_a_directory_that_settles_is_waited_for(
    make: Callable[[AsyncClient], Awaitable[None]],
    server: Any,
    clock: list[float],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    refusing(
        server.fake,
        monkeypatch,
        lambda: rules.unsettled(HEALS_AFTER_S - clock[0]) if clock[0] < HEALS_AFTER_S else None,
    )
    caplog.set_level(logging.WARNING, "sandlot.client")
    async with AsyncClient(server.url) as client:
        await make(client)
    told = [record.getMessage() for record in caplog.records if record.name == "sandlot.client"]
    assert "rebuilt from the workers" in told[0]
    assert f"{server.url} is not available. Retrying for up to" in told[0]
    assert "is available again" in told[-1]
    assert len(told) == 2, "once is enough"


async def test_a_server_that_does_not_heal_is_given_up_after_half_a_minute(
    server: Any, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing(server.fake, monkeypatch, lambda: rules.late("w1", 60))
    async with AsyncClient(server.url) as client:
        with pytest.raises(Unavailable, match="is not responding"):
            await client.create()
    assert 30 <= clock[0] < 35


@pytest.mark.parametrize(
    "error",
    [
        limit_reached(Allowance("t:acme", CallerLimits(sessions=5)), "sessions", Use(1)),
        rules.no_room("base", offered=True),
        Unavailable("the queue is full", retry_after_s=3, details={"reason": "queue"}),
        Unavailable("closed", retryable=False),
        Busy("x"),
        EngineTimeout("x"),
        InvalidRequest("x"),
        Unavailable("in an hour", retry_after_s=3600),
    ],
)
async def test_what_waiting_does_not_mend_comes_at_once(
    error: SandlotError, server: Any, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing(server.fake, monkeypatch, lambda: error)
    async with AsyncClient(server.url) as client:
        with pytest.raises(type(error), match=error.message):
            await client.create()
    assert clock[0] < HEALS_AFTER_S


async def test_a_server_that_was_there_is_waited_for(server: Any, clock: list[float]) -> None:
    """And one that never was is not: most often its address is wrong, or nobody has started it."""
    service = HttpService(server.url)
    with pytest.raises(Unavailable, match="Cannot connect"):
        await HttpService("http://127.0.0.1:1").create_session(CreateSession())
    assert clock[0] < 1
    await service.catalogue()
    service._connection.url = "http://127.0.0.1:1"
    with pytest.raises(Unavailable, match="Cannot connect"):
        await service.create_session(CreateSession())
    assert clock[0] >= 30
    await service.close()


async def test_who_is_cancelled_does_not_wait(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    refusing(server.fake, monkeypatch, lambda: Unavailable("x", retry_after_s=20))
    async with AsyncClient(server.url) as client:
        creating = asyncio.create_task(client.create())
        await asyncio.sleep(0.2)
        creating.cancel()
        began = time.monotonic()
        with pytest.raises(asyncio.CancelledError):
            await creating
        assert time.monotonic() - began < 10


def test_which_errors_are_waited_for() -> None:
    def pauses(error: SandlotError, *, answered: bool = True) -> bool:
        connection = Connection("http://127.0.0.1:1")
        connection.has_answered = answered
        now = [0.0]
        waiting = Patience(connection, 30, lambda: now[0])
        for _ in range(10):
            if waiting.pause_after(error) is None:
                return False
            now[0] += 1
        return True

    assert pauses(LinkInterrupted("cut"))
    assert pauses(StorageFull("the disk of this worker is full"))
    assert pauses(Unavailable("a proxy has no server", details={"foreign_status": 503}))
    for error in (LinkInterrupted("cut"), Unavailable("x", details={"foreign_status": 503})):
        assert not pauses(error, answered=False)
    assert not pauses(Busy("x", retry_after_s=1))
