"""Routes that are answered before the framework: nothing that the edge does for others may be missing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
from tests.unit.api.conftest import KEY, living

from sandlot.api.edge.raw_routes import RawRoute
from sandlot.domain.callers.principal import OWNER, Principal
from sandlot.domain.errors import InvalidRequest, Unavailable
from sandlot.domain.ids import new_session_id
from sandlot.domain.session import Session
from sandlot.fleet.access import AccessTokens, TokenGate
from sandlot.fleet.signing_keys import SigningKey

PATH = "/v1/fleet/plain"


async def handle(caller: Principal, sent: bytes) -> tuple[int, bytes]:
    match sent:
        case b"refuse":
            raise InvalidRequest("not like this")
        case b"busy":
            raise Unavailable("not now", retry_after_s=2.0, may_have_executed=False)
        case b"fail":
            raise RuntimeError("a secret of this server")
    return 201, b'{"bytes":%d}' % len(sent)


ROUTE = (RawRoute(PATH, handle),)


def listening() -> tuple[RawRoute, list[bytes]]:
    """A route, and what has come to it."""
    seen = []

    async def heard(caller: Principal, sent: bytes) -> tuple[int, bytes]:
        seen.append(sent)
        return 200, b"{}"

    return RawRoute(PATH, heard), seen


async def test_it_is_answered_behind_the_edge() -> None:
    async with living(raw_routes=ROUTE, worker_id="w-7") as live:
        made = await live.client.post(PATH, content=b"x" * 300_000, headers={"X-Request-Id": "req-of-mine"})
        assert (made.status_code, made.json()) == (201, {"bytes": 300_000})
        assert made.headers["content-type"] == "application/json"
        assert made.headers["x-request-id"] == "req-of-mine"
        assert made.headers["sandlot-worker"] == "w-7"
        assert made.headers["x-content-type-options"] == "nosniff"
        figures = (await live.client.get("/metrics")).text
        assert f'sandlot_http_requests_total{{method="POST",route="{PATH}",status="201"}}' in figures


async def test_nobody_comes_in_without_the_key() -> None:
    async with living(raw_routes=ROUTE) as live, httpx.AsyncClient(base_url=live.url) as stranger:
        refused = await stranger.post(PATH, content=b"x")
        assert (refused.status_code, refused.json()["code"]) == (401, "unauthorized")
        foreign = {"Authorization": f"Bearer {KEY}", "Origin": "https://elsewhere.example"}
        assert (await stranger.post(PATH, content=b"x", headers=foreign)).status_code == 403


async def test_errors_are_problems() -> None:
    async with living(raw_routes=ROUTE) as live:
        refused = await live.client.post(PATH, content=b"refuse")
        assert (refused.status_code, refused.json()["code"]) == (422, "invalid_request")
        assert refused.json()["detail"] == "not like this"
        assert refused.headers["content-type"] == "application/problem+json"
        busy = await live.client.post(PATH, content=b"busy")
        assert (busy.status_code, busy.headers["retry-after"]) == (503, "2")
        assert busy.json()["may_have_executed"] is False
        failed = await live.client.post(PATH, content=b"fail")
        assert (failed.status_code, failed.json()["code"]) == (500, "internal")
        assert "secret" not in failed.text


async def test_other_methods_and_paths_are_not_its_own() -> None:
    async with living(raw_routes=ROUTE) as live:
        refused = await live.client.get(PATH)
        assert (refused.status_code, refused.headers["allow"]) == (405, "POST")
        assert (await live.client.post(PATH + "/more", content=b"x")).status_code == 404


async def test_a_body_is_bounded_in_size_and_time() -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(9):
            yield b"x" * 512 * 1024

    head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n"
    async with living(raw_routes=ROUTE, body_timeout_s=0.3) as live:
        large = await live.client.post(PATH, content=endless())
        assert (large.status_code, large.json()["code"]) == (413, "too_large")
        slow = await live.raw(f"{head}Content-Length: 10\r\n\r\nabc".encode())
        assert b" 408 " in slow.split(b"\r\n")[0]


async def test_who_leaves_in_the_middle_is_not_served() -> None:
    route, seen = listening()
    async with living(raw_routes=(route,)) as live:
        _, writer = await asyncio.open_connection("127.0.0.1", live.port)
        head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n"
        writer.write(f"{head}Content-Length: 10\r\n\r\nabc".encode())
        await writer.drain()
        writer.close()
        while f'route="{PATH}"' not in (figures := (await live.client.get("/metrics")).text):
            await asyncio.sleep(0.02)
        assert seen == []
        assert f'route="{PATH}",status="0"' in figures


async def test_the_gate_is_asked_first() -> None:
    route, seen = listening()

    async def gate() -> None:
        raise Unavailable("replaced by another worker")

    async with living(raw_routes=(route,), gate=gate) as live:
        refused = await live.client.post(PATH, content=b"x")
        assert (refused.status_code, refused.json()["detail"]) == (503, "replaced by another worker")
        assert seen == []


async def test_creates_are_taken_from_members_alone() -> None:
    key = SigningKey.generate("k1")
    tokens = AccessTokens(key, lifetime_s=60.0)
    gate = TokenGate(key.public, worker_id="w1", generation_of=lambda _: None)
    route, seen = listening()
    session = Session(new_session_id(), "base", 0.0, 0.0)
    of_session = tokens.for_session(OWNER, session, "http://w1", "w1")
    assert of_session is not None
    bearers = {
        of_session.token: 401,
        tokens.for_member("w2", OWNER): 401,
        KEY: 401,
        tokens.for_member("w1", OWNER): 200,
    }
    async with living(raw_routes=(route,), tokens=gate) as live:
        for bearer, status in bearers.items():
            headers = {"Authorization": f"Bearer {bearer}"}
            assert (await live.client.post(PATH, content=b"x", headers=headers)).status_code == status
    assert seen == [b"x"]


async def test_a_server_that_stops_says_that_it_may_have_been_done() -> None:
    begun = asyncio.Event()

    async def hangs(caller: Principal, sent: bytes) -> tuple[int, bytes]:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with living(raw_routes=(RawRoute(PATH, hangs),)) as live:
        before = asyncio.all_tasks()
        asking = asyncio.create_task(live.client.post(PATH, content=b"x"))
        await begun.wait()
        serving = [task for task in asyncio.all_tasks() - before if task is not asking]
        for task in serving:
            task.cancel()
        answer = await asking
    assert (answer.status_code, answer.json()["may_have_executed"]) == (503, True)
