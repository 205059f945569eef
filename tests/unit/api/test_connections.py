"""S8: connections and streams are bounded, and whoever only keeps them open keeps nobody out."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx
import pytest
import uvicorn
from websockets.asyncio.client import connect

from sandlot.api import create_app
from sandlot.api.edge.connection_limits import ConnectionLimits, OpenConnections
from sandlot.api.edge.stream_limits import StreamLimits
from sandlot.api.edge.uvicorn_protocols import BoundedWebSocketProtocol, http_protocol
from sandlot.api.responses import streams
from sandlot.domain.execution import ExecRequest
from sandlot.domain.session import CreateSession
from sandlot.testing.eventually import eventually
from sandlot.testing.fake import FakeService


class Guest:
    def __init__(self, address: str, idle_since: float | None) -> None:
        self.address, self.idle_since, self.here = address, idle_since, True

    def evict(self) -> None:
        self.here = False


def test_s8_the_longest_idle_makes_room() -> None:
    connections = OpenConnections(ConnectionLimits(total=3, per_address=3))
    busy, old, young = Guest("a", None), Guest("b", 1.0), Guest("c", 2.0)
    for guest in (busy, young, old):
        assert connections.admit(guest)
    assert connections.admit(Guest("d", None))
    assert (busy.here, old.here, young.here) == (True, False, True)
    assert connections.admit(Guest("e", None))
    assert not connections.admit(Guest("f", None))  # all are busy
    assert len(connections) == 3
    connections.remove(busy)
    connections.remove(busy)
    assert connections.admit(Guest("f", None))


def test_s8_one_address_makes_room_among_its_own() -> None:
    connections = OpenConnections(ConnectionLimits(total=100, per_address=2))
    other = Guest("b", 0.0)
    assert connections.admit(other)
    mine = [Guest("a", float(n)) for n in range(1, 10)]
    assert all(connections.admit(guest) for guest in mine)
    assert [guest.here for guest in mine] == [False] * 7 + [True] * 2
    assert other.here
    assert not any(guest in connections._open for guest in mine[:7])


def test_s8_half_of_the_descriptors_are_kept_for_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    assert ConnectionLimits().within_descriptors() == ConnectionLimits(512, 512)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    assert ConnectionLimits().within_descriptors() == ConnectionLimits()


@asynccontextmanager
async def serving(bounds: ConnectionLimits, **options: object) -> AsyncIterator[tuple[int, FakeService]]:
    service = FakeService()
    config = uvicorn.Config(
        create_app(service, **options),  # type: ignore[arg-type]
        port=0,
        http=http_protocol(bounds),
        ws=BoundedWebSocketProtocol,
        lifespan="off",
        log_config=None,
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    running = asyncio.create_task(server.serve())
    await eventually(lambda: server.started)
    yield server.servers[0].sockets[0].getsockname()[1], service
    server.should_exit = True
    await running
    await service.close()


async def test_s8_idle_connections_keep_nobody_out() -> None:
    async with serving(ConnectionLimits(total=20, per_address=20)) as (port, _):
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(100)]
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
            assert (await http.get("/health")).status_code == 200
        still = 0
        for reader, _ in idle:
            try:
                still += bool(await asyncio.wait_for(reader.read(1), 0.02))
            except TimeoutError:
                still += 1
        assert still <= 20
        for _, writer in idle:
            writer.close()


async def _streaming(client: httpx.AsyncClient, path: str) -> httpx.Response:
    request = client.build_request("GET", path, headers={"Accept": "text/event-stream"})
    return await client.send(request, stream=True)


async def test_s8_streams_are_counted_and_given_back() -> None:
    bounds = StreamLimits(total=5, per_key=3, per_address=5)
    async with serving(ConnectionLimits(), streams=bounds) as (port, service):
        session = (await service.create_session(CreateSession())).session
        await service.start_exec(session.id, ExecRequest(command="yes > /dev/null", exec_id="e"))
        path = f"/v1/sessions/{session.id}/execs/e"
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
            held = [await _streaming(http, path) for _ in range(3)]
            assert {answer.status_code for answer in held} == {200}
            refused = await http.get(path, headers={"Accept": "text/event-stream"})
            assert refused.status_code == 429
            assert "with this key" in refused.json()["detail"]
            assert refused.headers["retry-after"]
            assert (await http.get(path)).status_code == 200  # what is no stream is let in
            await held.pop().aclose()

            async def room() -> bool:
                async with connect(f"ws://127.0.0.1:{port}{path}/attach") as socket:
                    await socket.recv()
                    return True

            await eventually(_without_error(room), 20, "a place is free again")
            for answer in held:
                await answer.aclose()


def _without_error(call: Callable[[], object]) -> Callable[[], object]:
    async def tried() -> bool:
        try:
            return bool(await call())  # type: ignore[misc]
        except Exception:
            return False

    return tried


async def test_s8_websockets_count_as_connections_to_their_end() -> None:
    async with serving(ConnectionLimits(total=2, per_address=2)) as (port, service):
        session = (await service.create_session(CreateSession())).session
        await service.start_exec(session.id, ExecRequest(command="yes > /dev/null", exec_id="e"))
        url = f"ws://127.0.0.1:{port}/v1/sessions/{session.id}/execs/e/attach"
        async with connect(url) as first, connect(url) as second:
            await first.recv()
            await second.recv()
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
                assert (await http.get("/health")).status_code == 503

        async def let_in() -> bool:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
                return (await http.get("/health")).status_code == 200

        await eventually(_without_error(let_in), 20, "the sockets are gone")


async def test_s8_client_that_reads_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "CLIENT_READ_TIMEOUT_S", 0.3)
    async with serving(ConnectionLimits(), streams=StreamLimits(1, 1, 1)) as (port, service):
        session = (await service.create_session(CreateSession())).session
        await service.start_exec(session.id, ExecRequest(command="yes", exec_id="e", output_limit=None))
        path = f"/v1/sessions/{session.id}/execs/e"
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n".encode())
        await reader.readline()

        async def room() -> bool:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
                answer = await _streaming(http, path)
                await answer.aclose()
                return answer.status_code == 200

        await eventually(room, 30, "its place is free again")
        writer.close()
