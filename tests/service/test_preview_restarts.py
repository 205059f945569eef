"""A worker that dies in the middle of a preview's download and of its open WebSocket, directly and in a fleet."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from sandlot import AsyncSession
from sandlot.api.previews.websocket import GOING_AWAY
from sandlot.testing.eventually import eventually
from tests.faults.rig import ServerProcess
from tests.fleet_faults.rig import Fleet
from tests.service.apps import listens

# Alone, because they measure.
pytestmark = [pytest.mark.docker, pytest.mark.alone, pytest.mark.asyncio(loop_scope="session")]

PORT = 8000
KEY = "a-key-for-the-tests-alone"
SECONDS = 60.0
# A worker is killed this often. A preview is back within BACK_S at least once: any machine can stall.
ROUNDS = 2
BACK_S = 2.0
# What a dead worker leaves open must end by then.
BROKEN_WITHIN_S = 15.0

# Answers with its pid and how often it was asked. /endless never ends, and /socket is a WebSocket that never does.
ENDLESS = """
import base64, hashlib, itertools, os, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

asked = itertools.count(1)

class Program(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.path == "/endless":
            self.begin(200, ("Transfer-Encoding", "chunked"))
            self.repeat(b"400\\r\\n" + b"x" * 1024 + b"\\r\\n")
        elif self.path == "/socket":
            key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
            accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
            self.begin(101, ("Upgrade", "websocket"), ("Connection", "Upgrade"), ("Sec-WebSocket-Accept", accept))
            self.repeat(b"\\x81\\x04tick")
        else:
            said = f"{os.getpid()} {next(asked)}".encode()
            self.begin(200, ("Content-Length", str(len(said))))
            self.wfile.write(said)

    def begin(self, status, *headers):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()

    def repeat(self, data):
        self.close_connection = True
        try:
            while True:
                self.wfile.write(data)
                self.wfile.flush()
                time.sleep(0.05)
        except OSError:
            pass

ThreadingHTTPServer(("127.0.0.1", 8000), Program).serve_forever()
"""


async def started(session: AsyncSession) -> str:
    await session.files.write("program.py", ENDLESS.encode())
    await session.start("python3 program.py")
    await listens(session, PORT)
    return (await session.expose(PORT)).url


async def download(url: str, begun: asyncio.Event) -> None:
    client = httpx.AsyncClient(timeout=SECONDS)
    async with client as visitor, visitor.stream("GET", url + "endless") as answer:
        assert answer.status_code == 200
        async for _ in answer.aiter_bytes():
            begun.set()


async def listen(url: str, begun: asyncio.Event) -> None:
    async with connect("ws" + url.removeprefix("http") + "socket") as socket:
        while await socket.recv() == "tick":
            begun.set()


async def broken(visit: Coroutine[None, None, None]) -> None:
    """An answer that is not complete must not look complete, and a WebSocket not as if the program had closed it."""
    with pytest.raises((httpx.TransportError, ConnectionClosed)) as raised:
        await visit
    if isinstance(raised.value, ConnectionClosed):
        close = raised.value.rcvd
        assert close is None or close.code == GOING_AWAY


async def survives(
    url: str, kill: Callable[[], Awaitable[None]], start: Callable[[], Awaitable[None]]
) -> None:
    """Kills while visitors are connected, and starts again."""
    took = []
    async with httpx.AsyncClient(timeout=SECONDS) as visitor:
        pid, count = (await visitor.get(url)).text.split()
        for _ in range(ROUNDS):
            begun = asyncio.Event(), asyncio.Event()
            visits = [
                asyncio.create_task(broken(download(url, begun[0]))),
                asyncio.create_task(broken(listen(url, begun[1]))),
            ]
            async with asyncio.timeout(SECONDS):
                await asyncio.gather(*(event.wait() for event in begun))
            killed = time.monotonic()
            await kill()
            async with asyncio.timeout(BROKEN_WITHIN_S):
                await asyncio.gather(*visits)
            ended = time.monotonic() - killed
            await start()
            ready = time.monotonic()

            async def answers() -> bool:
                nonlocal count
                try:
                    answer = await visitor.get(url)
                except httpx.TransportError:
                    return False
                if answer.status_code != 200:
                    return False
                before, (same, count) = count, answer.text.split()
                assert (same, int(count)) == (pid, int(before) + 1), "another program answers"
                return True

            await eventually(answers, SECONDS, "the preview works again")
            took.append(time.monotonic() - ready)
            print(
                f"visits ended {ended:.2f} s after the kill; back {took[-1]:.2f} s after the worker was ready"
            )
    assert min(took) < BACK_S


async def test_a_killed_server() -> None:
    server = ServerProcess(api_key=KEY)
    try:
        await server.start()
        async with server.client() as client:
            await survives(await started(await client.create()), server.kill, server.start)
    finally:
        await server.clean()


async def test_a_killed_worker_of_a_fleet() -> None:
    """The coordinator runs on, and must not keep a visitor waiting for what never comes."""
    fleet = Fleet(workers=1, coordinators=1)
    try:
        await fleet.start()
        async with fleet.client() as client:
            [worker] = fleet.workers
            await survives(await started(await client.create()), worker.kill, worker.start)
    finally:
        await fleet.clean()
