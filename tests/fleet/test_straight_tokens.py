"""Tokens that do not open any more, sessions that are elsewhere, and where tokens may go."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import pytest

from sandlot.client.http.routing import routes
from sandlot.client.http.routing.routes import Routes
from sandlot.client.http.transport.connection import Connection
from sandlot.domain.errors import (
    NotFound,
    SandlotError,
    SessionEnded,
    Unavailable,
)
from sandlot.domain.execution import ExecRequest, ExecResult
from sandlot.domain.service import Access
from sandlot.fleet.signing_keys import SigningKey
from tests.fleet.straight_rig import Heard, Rig, rigged
from tests.service.served import served

# --- tokens that do not open any more -----------------------------------------------------------


async def test_access_is_renewed_before_it_is_over() -> None:
    """Once, however many calls need it at that moment."""
    async with rigged() as rig:
        session = await rig.session()
        await rig.run(session)
        assert rig.coordinator.since() == []
        held = rig.service._routes._routes[session]
        assert 10 < held.valid_until - held.renew_at < 20, "a quarter of its minute"
        held.renew_at = time.monotonic()  # that far it is now, and not over
        await asyncio.gather(*(rig.run(session) for _ in range(20)))
        assert rig.coordinator.since() == ["get_session"]
        assert rig.worker.since() == ["execute"] * 21
        assert rig.gate.refused == 0


async def test_one_of_many_that_wait_for_new_access_may_be_cancelled() -> None:
    async with rigged(lifetime_s=1.0) as rig:
        session = await rig.session()
        rig.service._routes._routes[session].expire()
        calls = [asyncio.create_task(rig.run(session)) for _ in range(5)]
        await asyncio.sleep(0)
        calls[0].cancel()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(results[0], asyncio.CancelledError)
        assert all(isinstance(result, ExecResult) for result in results[1:])


async def test_a_refused_token_is_renewed(rig: Rig) -> None:
    """Somebody else has made the session's sandbox anew: the token was for the one before."""
    session = await rig.session()
    rig.fake.lose(session)
    await rig.fake.recreate_session(session)
    result = await rig.run(session)
    assert result.generation == 2
    assert rig.gate.refused == 1
    assert rig.coordinator.since() == ["get_session"]
    assert rig.worker.since() == ["execute"]
    attached = await rig.service.start_exec(session, ExecRequest(command="cat", stdin=True))
    await attached.detach()
    assert rig.gate.refused == 1


async def test_a_websocket_that_is_refused(rig: Rig) -> None:
    session = await rig.session()
    rig.fake.lose(session)
    await rig.fake.recreate_session(session)
    request = ExecRequest(command="sleep 5", stdin=True)
    await rig.fake.start_exec(session, request)
    attached = await rig.service.attach_exec(session, request.exec_id)
    await attached.detach()
    assert rig.gate.refused == 1
    assert rig.coordinator.since() == ["get_session"]
    assert rig.worker.since() == ["attach_exec"]


async def test_a_worker_that_refuses_all_tokens() -> None:
    """As one with other keys: through the coordinator, and it is not asked each time."""
    async with rigged(worker_keys=SigningKey.generate("k1").public) as rig:
        session = await rig.session()
        for _ in range(3):
            await rig.run(session)
        assert rig.gate.refused == 2
        assert rig.coordinator.since() == ["get_session", "execute", "execute", "execute"]


async def test_a_clock_that_is_hours_ahead_of_the_fleets() -> None:
    """Access looks over when it comes; it is used until it is refused."""
    async with rigged(clock=lambda: time.time() - 7200) as rig:
        session = await rig.session()
        for _ in range(3):
            await rig.run(session)
        assert rig.coordinator.since() == []
        assert rig.gate.refused == 0


async def test_content_is_not_sent_twice(rig: Rig) -> None:
    session = await rig.session()
    rig.fake.lose(session)
    await rig.fake.recreate_session(session)
    files = rig.service.files(session)
    taken = 0

    async def content() -> AsyncIterator[bytes]:
        nonlocal taken
        for _ in range(3):
            taken += 1
            yield b"x" * 1000

    with pytest.raises(Unavailable, match="Send the content again") as told:
        await files.write("/workspace/a", content())
    assert told.value.retryable
    assert not told.value.may_have_executed
    assert rig.worker.since() == []
    taken = 0
    assert (await files.write("/workspace/a", content())).size == 3000
    assert taken == 3
    assert rig.worker.since() == ["files"]
    assert rig.coordinator.since() == ["get_session"]


# --- sessions that are elsewhere ----------------------------------------------------------------


@pytest.mark.parametrize(
    "says",
    [
        lambda: NotFound("there is no such session"),
        lambda: Unavailable("given up", details={"reason": "not_here"}),
        lambda: Unavailable("another process has my name", details={"reason": "fenced"}),
        lambda: Unavailable("I was away", retry_after_s=1.0, details={"reason": "in_doubt"}),
    ],
    ids=["not-found", "not-here", "fenced", "in-doubt"],
)
async def test_a_session_that_has_another_worker(rig: Rig, says: Callable[[], SandlotError]) -> None:
    other = Heard(rig.fake)
    session = await rig.session()
    async with served(other, tokens=rig.gate, worker_id="w1") as other_url:
        rig.worker.raises = says
        rig.where = other_url
        await rig.run(session)
        await rig.run(session)
    assert rig.worker.since() == ["execute"]
    assert other.since() == ["execute", "execute"]
    assert rig.coordinator.since() == ["get_session"]


async def test_a_worker_that_gave_a_session_up_which_the_coordinator_still_sees_there(rig: Rig) -> None:
    session = await rig.session()
    rig.worker.raises = lambda: Unavailable("given up", details={"reason": "not_here"})
    attached = await rig.service.start_exec(session, ExecRequest(command="cat", stdin=True))
    await attached.detach()
    assert rig.coordinator.since() == ["get_session", "start_exec", "attach_exec"]
    await rig.run(session)
    assert rig.coordinator.since() == ["execute"], "for a while, straight is not tried"
    rig.worker.since()
    rig.worker.raises = None
    rig.service._routes._routes[session].renew_at = 0.0
    await rig.run(session)
    assert rig.coordinator.since() == ["get_session"]
    assert rig.worker.since() == ["execute"]


async def test_a_websocket_to_a_session_that_moved(rig: Rig) -> None:
    """It is opened before the session is looked for, so the refusal comes as an event."""
    session = await rig.session()
    request = ExecRequest(command="sleep 5", stdin=True)
    await rig.fake.start_exec(session, request)
    rig.worker.raises = lambda: NotFound("there is no such session")
    rig.where = None
    attached = await rig.service.attach_exec(session, request.exec_id)
    await attached.detach()
    assert rig.worker.since() == ["attach_exec"]
    assert rig.coordinator.since() == ["get_session", "attach_exec"]


async def test_an_exec_that_is_not_there(rig: Rig) -> None:
    """The worker's word is good, since the coordinator says that the session is there."""
    session = await rig.session()
    with pytest.raises(NotFound):
        await rig.service.get_exec(session, "exec_none")
    assert rig.worker.since() == ["get_exec"]
    assert rig.coordinator.since() == ["get_session"]
    await rig.run(session)
    assert rig.worker.since() == ["execute"]


async def test_a_session_that_has_ended(rig: Rig) -> None:
    session = await rig.session()
    await rig.fake.delete_session(session)
    with pytest.raises(SessionEnded):
        await rig.service.execute(session, ExecRequest(command="true"))
    assert rig.worker.since() == ["execute"]
    assert rig.coordinator.since() == ["get_session"]
    assert not rig.service._routes.knows(session)


# --- what is kept, and where tokens may go ------------------------------------------------------


@pytest.mark.parametrize(
    ("door", "worker", "goes"),
    [
        ("https://fleet.example", "https://w1.example:8443", True),
        ("https://fleet.example", "http://w1.example:8000", False),
        ("https://fleet.example", "http://10.0.0.7:8000", False),
        ("https://fleet.example", "http://127.0.0.1:8000", False),
        ("http://fleet.example", "http://127.0.0.1:8000", False),
        ("http://localhost:9000", "http://127.0.0.1:8000", True),
        ("https://localhost:9000", "http://127.0.0.1:8000", True),
        ("https://fleet.example", "http://127.0.0.1.evil.example:8000", False),
        ("http://fleet.example", "http://10.0.0.7:8000/", True),
        ("http://fleet.example", "ftp://10.0.0.7", False),
        ("http://fleet.example", "file:///etc/passwd", False),
        ("http://fleet.example", "no url", False),
        ("http://fleet.example", "", False),
    ],
)
async def test_where_a_token_goes(door: str, worker: str, goes: bool) -> None:
    """What was secret on the way to the coordinator is not sent in the clear to a worker."""
    kept = routes_to(door)
    kept.record("ses_1", Access(worker, "token", time.time() + 60, "w1"))
    straight = await kept.direct_to("ses_1")
    assert (straight is not None) is goes
    if straight is not None:
        assert straight.url == worker.rstrip("/")
        assert straight.identity_headers == {"Authorization": "Bearer token"}
    await kept.close()


def routes_to(door: str) -> Routes:
    async def ask(session_id: str) -> Access | None:
        raise AssertionError(session_id)

    return Routes(Connection(door, "a-key"), ask)


async def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "MAX_SESSIONS", 5)
    monkeypatch.setattr(routes, "MAX_WORKERS", 3)
    kept = routes_to("http://fleet.example")
    for n in range(20):
        kept.record(f"ses_{n}", Access(f"http://10.0.0.{n}", "token", time.time() + 60, f"w{n}"))
        assert await kept.direct_to(f"ses_{n}") is not None
        kept.record(
            "ses_0", Access("http://10.0.0.0", "token", time.time() + 60, "w0")
        )  # seen again and again
    assert list(kept._routes) == ["ses_16", "ses_17", "ses_18", "ses_19", "ses_0"]
    assert len(kept._workers) == 3
    assert await kept.direct_to("ses_0") is not None
    await kept.close()
    assert not kept._workers
