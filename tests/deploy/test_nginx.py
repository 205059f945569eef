"""The proxy before the coordinators: nothing that may have run is sent twice, nothing is held back."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import httpx
import pytest
import websockets
from websockets.asyncio.server import ServerConnection, serve

from sandlot.client.http.transport.errors import error_of_answer
from sandlot.domain.errors import (
    Busy,
    EngineProblem,
    LinkInterrupted,
    NotFound,
    SandlotError,
    TooLarge,
    Unavailable,
)
from tests.deploy.fronted import Behaviour, Change, Front, Request, begins_and_dies, front, says_ok

pytestmark = pytest.mark.docker

Fronted = Callable[..., AbstractAsyncContextManager[Front]]
EXEC = "/v1/sessions/ses_1/exec"
FILE = "/v1/sessions/ses_1/files/content?path=a"


@pytest.fixture
def fronted(made: Path, nginx_image: str) -> Fronted:
    def begin(
        *behaviours: Behaviour | None, patient: bool = True, change: Change | None = None
    ) -> AbstractAsyncContextManager[Front]:
        return front(
            list(behaviours), patient=patient, change=change, secrets=made / "secrets", image=nginx_image
        )

    return begin


def error_in(answer: httpx.Response) -> SandlotError:
    """As the SDK understands it; every one must be a whole problem of ours."""
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["status"] == answer.status_code
    assert answer.json()["request_id"] == answer.headers["x-request-id"]
    return error_of_answer("here", answer.status_code, answer.content, answer.headers)


# --- what is asked of another coordinator -----------------------------------------------------------


async def test_a_coordinator_that_is_not_there_costs_nobody_a_call(fronted: Fronted) -> None:
    async with fronted(None, says_ok) as nginx, nginx.client() as client:
        for method in ("GET", "POST", "PATCH"):
            for _ in range(4):
                content = None if method == "GET" else b"x" * 100
                answer = await client.request(method, EXEC, content=content)
                assert answer.status_code == 200, method
        assert len(nginx.seen) == 12


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", EXEC, b'{"command": "rm x"}'),
        ("POST", "/v1/sessions/ses_1/recreate", b""),
        ("PATCH", "/v1/sessions/ses_1", b"{}"),
        ("PUT", FILE, b"content"),
        ("PUT", FILE, b""),
        ("PUT", FILE, None),
        ("PUT", FILE, "chunked"),
        ("DELETE", "/v1/sessions/ses_1/files?path=a", None),
        ("DELETE", "/v1/sessions/ses_1", None),
    ],
)
async def test_what_may_have_run_is_never_sent_twice(
    fronted: Fronted, method: str, path: str, body: bytes | str | None
) -> None:
    async with fronted(begins_and_dies, begins_and_dies) as nginx, nginx.client() as client:
        content = _nothing() if body == "chunked" else body
        answer = await client.request(method, path, content=content)
        assert len(nginx.seen) == 1, "it was sent to the other coordinator as well"
    assert answer.status_code == 503
    error = error_in(answer)
    assert isinstance(error, LinkInterrupted)
    assert (error.retryable, error.may_have_executed) == (True, True)


async def _nothing() -> AsyncIterator[bytes]:
    for piece in ():
        yield piece


async def test_a_read_is_asked_of_the_other(fronted: Fronted) -> None:
    """Also shows that the count above can be two."""
    async with fronted(begins_and_dies, begins_and_dies) as nginx, nginx.client() as client:
        assert (await client.get("/v1/sessions")).status_code == 503
        assert len(nginx.seen) == 2


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
async def test_without_any_coordinator_nothing_can_have_run(fronted: Fronted, method: str) -> None:
    async with fronted(None, None) as nginx, nginx.client() as client:
        for _ in range(3):
            answer = await client.request(method, EXEC)
            error = error_in(answer)
            assert isinstance(error, Unavailable), answer.text
            assert (error.retryable, error.may_have_executed, error.retry_after_s) == (True, False, 1)
            assert answer.headers["retry-after"] == "1"


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
async def test_what_nginx_would_repeat_finds_the_living_coordinator_the_second_time(
    fronted: Fronted, method: str
) -> None:
    """The SDK does that by itself: nothing was sent."""

    def longer(file: str, text: str) -> str:
        assert file != "nginx.conf" or "fail_timeout=5s" in text
        return text.replace("fail_timeout=5s", "fail_timeout=300s")  # than four calls take anywhere

    async with (
        fronted(None, says_ok, patient=False, change=longer) as nginx,
        nginx.client() as client,
    ):
        answers = [await client.request(method, FILE) for _ in range(4)]
    assert [answer.status_code for answer in answers].count(503) <= 1
    assert answers[-1].status_code == 200
    assert all(not error_in(answer).may_have_executed for answer in answers if answer.status_code == 503)


# --- what is for operators ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/metrics",
        "/metrics/",
        "/v1/fleet",
        "/v1/fleet/sessions",
        "/v1/fleet/workers/w1/drain",
        "/v1/%66leet",
    ],
)
async def test_the_fleets_own_routes_are_not_for_everybody(fronted: Fronted, path: str) -> None:
    """O11: also with the key, which every client has."""

    def outside(file: str, text: str) -> str:
        assert file != "http.conf" or "127.0.0.0/8 1;" in text
        return text.replace("127.0.0.0/8 1;", "")

    async with fronted(says_ok, says_ok, change=outside) as nginx, nginx.client() as client:
        answer = await client.post(path)
        assert answer.status_code == 404
        assert isinstance(error_in(answer), NotFound)
        assert not nginx.seen
        assert (await client.get("/v1/sessions")).status_code == 200
    async with fronted(says_ok, says_ok) as nginx, nginx.client() as client:
        assert (await client.post("/v1/fleet/workers/w1/drain")).status_code == 200


# --- bounds -------------------------------------------------------------------------------------------


async def test_a_loop_gone_wild_is_slowed_down(fronted: Fronted) -> None:
    """With another rate, so that it does not matter how fast this machine asks; the burst is the real one."""

    def slower(file: str, text: str) -> str:
        assert file != "http.conf" or "rate=100r/s" in text
        return text.replace("rate=100r/s", "rate=1r/s")

    async with fronted(says_ok, says_ok, change=slower) as nginx, nginx.client() as client:
        answers = [
            answer
            for _ in range(12)
            for answer in await asyncio.gather(*(client.get("/health") for _ in range(50)))
        ]
    refused = [answer for answer in answers if answer.status_code == 429]
    assert refused, "600 requests were all let through"
    assert len(answers) - len(refused) >= 400, "the burst was not let through"
    error = error_in(refused[0])
    assert isinstance(error, Busy)
    assert not error.may_have_executed


async def test_a_body_beyond_every_bound_is_refused_unsent(fronted: Fronted) -> None:
    async with fronted(says_ok, says_ok) as nginx:
        reader, writer = await asyncio.open_connection(*nginx.address, ssl=nginx.tls)
        writer.write(
            f"PUT {FILE} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {2 * 1024**3}\r\n\r\nx".encode()
        )
        head, _, body = (await asyncio.wait_for(reader.read(), 30)).partition(b"\r\n\r\n")
        writer.close()
        assert nginx.seen == []
    assert head.startswith(b"HTTP/1.1 413 ")
    assert isinstance(error_of_answer("here", 413, body, {}), TooLarge)


async def test_a_coordinators_own_error_passes_as_it_is(fronted: Fronted) -> None:
    problem = b'{"title":"t","status":502,"detail":"d","code":"engine_problem","retryable":false,"may_have_executed":false}'

    async def refuses(request: Request) -> None:
        request.answer(problem, status="502 Bad Gateway", kind="application/problem+json")

    async with fronted(refuses, refuses) as nginx, nginx.client() as client:
        answer = await client.post(EXEC)
        assert len(nginx.seen) == 1
    assert answer.content == problem
    assert isinstance(
        error_of_answer("here", answer.status_code, answer.content, answer.headers), EngineProblem
    )


# --- what passes, as it comes -----------------------------------------------------------------------


async def test_events_are_not_held_back(fronted: Fronted) -> None:
    read = asyncio.Event()

    async def streams(request: Request) -> None:
        request.writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: first\n\n")
        await request.writer.drain()
        await asyncio.wait_for(read.wait(), 30)  # the second is only sent once the first was read
        request.writer.write(b"data: second\n\n")

    async with (
        fronted(streams, streams) as nginx,
        nginx.client() as client,
        client.stream("GET", EXEC) as answer,
    ):
        pieces = answer.aiter_raw()
        assert await anext(pieces) == b"data: first\n\n"
        read.set()
        assert await anext(pieces) == b"data: second\n\n"


async def test_an_upload_flows_while_it_is_sent(fronted: Fronted) -> None:
    begun = asyncio.Event()

    async def takes(request: Request) -> None:
        begun.set()
        assert len(await request.body()) == 2000
        request.answer(b"{}")

    async def slowly() -> AsyncIterator[bytes]:
        yield b"x" * 1000
        # The rest is only sent once the coordinator has begun to read.
        await asyncio.wait_for(begun.wait(), 30)
        yield b"x" * 1000

    async with fronted(takes, takes) as nginx, nginx.client() as client:
        assert (await client.put(FILE, content=slowly())).status_code == 200


async def test_websockets_pass(fronted: Fronted) -> None:
    async def echo(connection: ServerConnection) -> None:
        async for message in connection:
            await connection.send(message)

    async with serve(echo, "127.0.0.1", 0) as echoing:
        port: int = next(iter(echoing.sockets)).getsockname()[1]

        async def relays(request: Request) -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            head = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
            writer.write(f"GET {request.path} HTTP/1.1\r\n{head}\r\n".encode())
            await asyncio.gather(_pump(reader, request.writer), _pump(request.reader, writer))

        async with fronted(relays, relays) as nginx:
            url = nginx.url.replace("https://", "wss://") + "/v1/sessions/ses_1/execs/e/attach"
            async with websockets.connect(url, ssl=nginx.tls, proxy=None) as connection:
                await connection.send(b"hello")
                assert await connection.recv() == b"hello"


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(4096):
        writer.write(piece)
    writer.close()


async def test_who_asks_is_told_by_nginx_alone(fronted: Fronted) -> None:
    lies = {"X-Forwarded-For": "6.6.6.6", "X-Forwarded-Host": "evil", "Forwarded": "for=6.6.6.6"}
    async with fronted(says_ok, says_ok) as nginx, nginx.client() as client:
        await client.get("/v1/sessions", headers=lies | {"X-Request-Id": "mine.1"})
        await client.get("/v1/sessions", headers={"X-Request-Id": 'no"quotes'})
        first, second = sorted(nginx.seen, key=lambda request: request.headers["x-request-id"] != "mine.1")
    host = nginx.url.removeprefix("https://")
    assert first.headers["host"] == host
    assert first.headers["x-forwarded-host"] == host
    assert first.headers["x-forwarded-for"] == "127.0.0.1"
    assert first.headers["x-forwarded-proto"] == "https"
    assert "forwarded" not in first.headers
    assert second.headers["x-request-id"].startswith("req_")


async def test_host_names_can_be_pinned_to_cells(fronted: Fronted) -> None:
    """As docs/howto/scaling.md says: one more line in the map, one more upstream."""

    def two_cells(file: str, text: str) -> str:
        if file != "nginx.conf":
            return text
        one = re.search(r"    upstream sandlot_coordinators \{.*?\n    \}\n", text, re.DOTALL)
        assert one is not None
        first, second = re.findall(r"        server 127\.0\.0\.1:\d+ .*\n", one[0])
        text = text.replace(second, "", 1)
        other = one[0].replace("sandlot_coordinators", "cell2").replace(first, "", 1)
        text = text.replace(
            "default sandlot_coordinators;", "default sandlot_coordinators; acme.example.com cell2;"
        )
        return text.replace("    server {", f"{other}\n    server {{", 1)

    async with fronted(says_ok, says_ok, change=two_cells) as nginx, nginx.client() as client:
        for _ in range(3):
            await client.get("/v1/sessions")
        await client.get("/v1/sessions", headers={"Host": "acme.example.com"})
        first, second = ([one.headers["host"] for one in cell.seen] for cell in nginx.coordinators)
    assert len(first) == 3
    assert second == ["acme.example.com"]
