"""R2: results are counted before they are held, and the encoded copy of them as well."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from tests.unit.api.conftest import Live, serving
from tests.unit.api.test_results import result_of

from sandlot.domain.execution import MIB, Channel, ExecResult, Exited, Output, ResultFold
from sandlot.domain.service import ExecStatus
from sandlot.domain.session import CreateSession
from sandlot.testing import FakeService
from sandlot.wire.packed import PACKED

BUDGET = 8 * MIB
CLIENTS = 40
# What 40 requests take beside what they hold, and what the measuring itself adds: generous.
SLACK = 32 * MIB


@contextlib.contextmanager
def traced() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


def test_r2_fold_lets_go_of_what_its_result_has() -> None:
    """A reader waits for the stream's end with the fold in hand: output must not be there twice meanwhile."""
    fold = ResultFold("e")
    with traced():
        for number in range(128):
            channel = Channel.STDOUT if number % 2 else Channel.STDERR
            fold.add(Output(channel, number * 64 * 1024, bytes(64 * 1024)))
        result = fold.add(Exited(0, 0, "exited"))
        now, _ = tracemalloc.get_traced_memory()
    assert result is not None
    held = len(result.stdout) + len(result.stderr) + len(result.output)
    assert held == 16 * MIB
    assert now < held + MIB


@contextlib.asynccontextmanager
async def asked(port: int, request: bytes, times: int) -> AsyncIterator[list[bytes]]:
    """The first lines of answers that nobody takes any further."""
    writers = []

    async def ask() -> bytes:
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        one.setblocking(False)
        await asyncio.get_running_loop().sock_connect(one, ("127.0.0.1", port))
        reader, writer = await asyncio.open_connection(sock=one, limit=1024)
        writers.append(writer)
        writer.write(request)
        return await reader.readline()

    try:
        yield await asyncio.gather(*(ask() for _ in range(times)))
    finally:
        for writer in writers:
            writer.transport.abort()


async def taken(port: int, request: bytes) -> bytes:
    """The first line of an answer that is taken to its end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
    line = await reader.readline()
    while await reader.read(MIB):
        pass
    writer.close()
    return line


def post(path: str, body: bytes, accept: str) -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body


RUN = ("/v1/sessions/x/exec", b'{"command":"true"}')
BACKGROUND = ("/v1/sessions/x/exec", b'{"command":"true","background":true}')
CLASSIC = ("/execute", b'{"session_id":"x","command":"true"}')
PROGRAM = ("/api/e2b/execute", b'{"session_id":"x","code":"true","language":"sh"}')


@pytest.mark.parametrize(
    ("route", "accept"),
    [
        (RUN, "application/json"),
        (RUN, PACKED),
        (BACKGROUND, "application/json"),
        (CLASSIC, "application/json"),
        (PROGRAM, "application/json"),
    ],
    ids=["run", "packed", "background", "classic", "program"],
)
async def test_r2_answers_that_nobody_takes_stay_within_the_budget(
    monkeypatch: pytest.MonkeyPatch, route: tuple[str, bytes], accept: str
) -> None:
    """Forty results of not quite half a MiB, which JSON writes in twelve times as many bytes."""
    service = FakeService()
    result = result_of(bytes(480 * 1024))

    async def execute(*_: object) -> ExecResult:
        return result

    async def get_exec(_: str, exec_id: str, **__: Any) -> ExecStatus:
        return ExecStatus(exec_id, running=False, result=result)

    class Started:
        async def detach(self) -> None: ...

    async def start_exec(*_: object, **__: object) -> Any:
        return Started()

    monkeypatch.setattr(service, "execute", execute)
    monkeypatch.setattr(service, "get_exec", get_exec)
    monkeypatch.setattr(service, "start_exec", start_exec)
    async with serving(service, api_key=None, max_held_bytes=BUDGET) as port:
        session = (await service.create_session(CreateSession())).session.id
        path, body = route
        request = post(
            path.replace("/x/", f"/{session}/"), body.replace(b'"x"', f'"{session}"'.encode()), accept
        )
        assert b" 20" in await taken(port, request)  # what is imported and made only once is there now
        with traced():
            async with asked(port, request, CLIENTS) as lines:
                _, peak = tracemalloc.get_traced_memory()
        refused = [line for line in lines if b" 429 " in line]
        assert refused
        assert len(refused) < CLIENTS
        assert peak < BUDGET + SLACK
    await service.close()


async def test_r2_short_output_with_long_json_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    service = FakeService()
    result = result_of(bytes(30 * 1024))  # 360 KiB of JSON

    async def execute(*_: object) -> ExecResult:
        return result

    monkeypatch.setattr(service, "execute", execute)
    async with (
        serving(service, api_key=None, max_held_bytes=MIB) as port,
        asked(port, post(*RUN, "application/json"), 20) as lines,
    ):
        assert any(b" 429 " in line for line in lines)
        assert any(b" 200 " in line for line in lines)
    await service.close()


async def test_r2_older_program_route_tells_the_same_in_pieces(live: Live) -> None:
    session = await live.session()
    out, err = 'é"\0'.encode() + b"\xff", "€".encode()
    told = []
    for times in (1, 40_000):
        result = result_of(out * times, err * times)

        async def execute(*_: object, result: ExecResult = result) -> ExecResult:
            return result

        live.service.execute = execute  # type: ignore[method-assign,assignment]
        body = {"session_id": session, "code": "true", "language": "bash"}
        told.append(await live.client.post("/api/e2b/execute", json=body))
    short, long = told
    assert ["content-length" in answer.headers for answer in told] == [True, False]
    repeated = {name: short.json()[name] * 40_000 for name in ("stdout", "stderr")}
    assert long.json() == {**short.json(), **repeated}
