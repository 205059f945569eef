"""Ports: connections to programs in the sandbox, and which of them visitors may reach."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from sandlot.client.async_session import AsyncSession
from sandlot.domain.computer import ByteStream
from sandlot.domain.errors import (
    Busy,
    InvalidRequest,
    LinkInterrupted,
    NotFound,
    SandboxLost,
    SandlotError,
    SessionEnded,
)
from sandlot.domain.network.ports import (
    MAX_CONNECTIONS,
    MAX_EXPOSED,
    NOTHING_LISTENS,
    PUBLIC,
    ExposePort,
)
from sandlot.domain.network.variables import PROXY_PORT
from sandlot.domain.service import SandboxService
from sandlot.testing.eventually import eventually
from sandlot.testing.service_suite.harness import Cases, ServiceHarness, check_three_fields, raises_within

ECHO_PORT = 7007
WITHIN_S = 30.0
ECHO = f"""
import socket, threading
def serve(c):
    with c:
        while data := c.recv(65536):
            c.sendall(data)
s = socket.create_server(("127.0.0.1", {ECHO_PORT}), backlog=256)
while True:
    threading.Thread(target=serve, args=(s.accept()[0],), daemon=True).start()
"""


async def echo(stream: ByteStream) -> None:
    """What ``ECHO`` does, for a service without real programs."""
    while data := await stream.receive():
        await stream.send(data)
    await stream.send_end()


async def _start_echo(harness: ServiceHarness, session: AsyncSession, service: SandboxService) -> None:
    if harness.serve_port is not None:
        harness.serve_port(session.id, ECHO_PORT, echo)
        return
    await session.files.write("echo.py", ECHO.encode())
    await session.start("exec python3 echo.py")

    async def listens() -> bool:
        try:
            await (await service.connect(session.id, ECHO_PORT)).close()
        except NotFound:
            return False
        return True

    await eventually(listens, WITHIN_S, "the echo server listens")


async def _read_all(stream: ByteStream) -> bytes:
    got = bytearray()
    async with asyncio.timeout(WITHIN_S):
        while piece := await stream.receive():
            got += piece
    return bytes(got)


async def _answers(stream: ByteStream) -> bool:
    await stream.send(b"ping")
    async with asyncio.timeout(WITHIN_S):
        return await stream.receive() == b"ping"


async def _ends(stream: ByteStream) -> SandlotError:
    with pytest.raises(SandlotError) as caught:
        await _read_all(stream)
    await stream.close()
    return caught.value


class PortCases(Cases):
    @pytest_asyncio.fixture(loop_scope="session")
    async def echoing(
        self, service_harness: ServiceHarness, service: SandboxService, fresh: AsyncSession
    ) -> AsyncIterator[AsyncSession]:
        await _start_echo(service_harness, fresh, service)
        yield fresh

    async def test_bytes_pass_both_ways_to_their_end(
        self, service: SandboxService, echoing: AsyncSession
    ) -> None:
        data = bytes(range(256)) * 8000
        stream = await service.connect(echoing.id, ECHO_PORT)

        async def send() -> None:
            for at in range(0, len(data), 100_000):
                await stream.send(data[at : at + 100_000])
            await stream.send_end()

        sending = asyncio.create_task(send())
        assert await _read_all(stream) == data
        await sending
        assert await stream.receive() == b""
        await stream.close()

    async def test_a_connection_counts_as_use(self, service: SandboxService, echoing: AsyncSession) -> None:
        before = (await echoing.refresh()).info.last_active_at
        stream = await service.connect(echoing.id, ECHO_PORT)

        async def used() -> bool:
            assert await _answers(stream)
            return (await service.get_session(echoing.id)).last_active_at > before

        await eventually(used, WITHIN_S, "the session counts as used")
        await stream.close()

    async def test_nothing_listens(self, service: SandboxService, session: AsyncSession) -> None:
        with pytest.raises(NotFound, match="Nothing listens on port 7009") as caught:
            await service.connect(session.id, 7009)
        check_three_fields(caught.value)
        assert type(caught.value) is NotFound
        assert caught.value.details["reason"] == NOTHING_LISTENS
        assert not caught.value.may_have_executed

    @pytest.mark.parametrize("port", [0, -1, 65536, PROXY_PORT])
    async def test_a_port_that_none_can_use(
        self, service: SandboxService, session: AsyncSession, port: int
    ) -> None:
        with pytest.raises(InvalidRequest):
            await service.connect(session.id, port)
        with pytest.raises(InvalidRequest):
            await session.expose(port)
        assert await session.previews() == []

    async def test_connections_end_with_their_session(
        self, service: SandboxService, echoing: AsyncSession
    ) -> None:
        stream = await service.connect(echoing.id, ECHO_PORT)
        assert await _answers(stream)
        await echoing.delete()
        assert isinstance(await _ends(stream), SessionEnded)
        with pytest.raises(SessionEnded):
            await service.connect(echoing.id, ECHO_PORT)

    async def test_connections_of_a_lost_sandbox(
        self, service_harness: ServiceHarness, service: SandboxService, echoing: AsyncSession
    ) -> None:
        stream = await service.connect(echoing.id, ECHO_PORT)
        assert await _answers(stream)
        await service_harness.lose(echoing.id)
        # The connection may break before anybody knows why.
        assert isinstance(await _ends(stream), SandboxLost | LinkInterrupted)
        await raises_within(lambda: service.connect(echoing.id, ECHO_PORT), SandboxLost, WITHIN_S)

    async def test_too_many_connections(self, service: SandboxService, echoing: AsyncSession) -> None:
        streams: list[ByteStream] = []

        async def connect_more() -> None:
            for _ in range(MAX_CONNECTIONS + 1):
                streams.append(await service.connect(echoing.id, ECHO_PORT))  # noqa: PERF401  some stay

        with pytest.raises(Busy) as caught:
            await connect_more()
        assert caught.value.details["at_most"] == MAX_CONNECTIONS
        # The connection that proved that the server listens may still be counted when the first one is made.
        assert MAX_CONNECTIONS - 1 <= len(streams) <= MAX_CONNECTIONS
        for stream in streams:
            await stream.close()

        async def has_room() -> bool:
            with contextlib.suppress(Busy):
                await (await service.connect(echoing.id, ECHO_PORT)).close()
                return True
            return False

        await eventually(has_room, WITHIN_S, "a closed connection makes room")

    # what visitors may reach

    async def test_visitors_reach_what_is_exposed(
        self, service: SandboxService, echoing: AsyncSession
    ) -> None:
        with pytest.raises(NotFound):
            await service.connect(echoing.id, ECHO_PORT, through=PUBLIC)
        exposure = (await service.expose_port(echoing.id, ExposePort(ECHO_PORT))).exposure
        assert (exposure.port, exposure.public) == (ECHO_PORT, False)
        stream = await service.connect(echoing.id, ECHO_PORT, through=exposure.id)
        assert await _answers(stream)
        await stream.close()
        for other in (PUBLIC, "0" * 16, exposure.id[:-1]):
            with pytest.raises(NotFound) as caught:
                await service.connect(echoing.id, ECHO_PORT, through=other)
            assert "reason" not in caught.value.details
        with pytest.raises(NotFound):
            await service.connect(echoing.id, ECHO_PORT + 1, through=exposure.id)

    async def test_public_is_a_choice_that_can_be_taken_back(
        self, service: SandboxService, echoing: AsyncSession
    ) -> None:
        first = (await service.expose_port(echoing.id, ExposePort(ECHO_PORT))).exposure
        public = (await service.expose_port(echoing.id, ExposePort(ECHO_PORT, public=True))).exposure
        assert (public.id, public.public) == (first.id, True)
        for through in (PUBLIC, first.id):
            stream = await service.connect(echoing.id, ECHO_PORT, through=through)
            assert await _answers(stream)
            await stream.close()
        await service.expose_port(echoing.id, ExposePort(ECHO_PORT))
        with pytest.raises(NotFound):
            await service.connect(echoing.id, ECHO_PORT, through=PUBLIC)

    async def test_unexposing_ends_the_connections_of_visitors(
        self, service: SandboxService, echoing: AsyncSession
    ) -> None:
        exposure = (await service.expose_port(echoing.id, ExposePort(ECHO_PORT))).exposure
        visitor = await service.connect(echoing.id, ECHO_PORT, through=exposure.id)
        caller = await service.connect(echoing.id, ECHO_PORT)
        assert await _answers(visitor)
        await echoing.unexpose(ECHO_PORT)
        assert isinstance(await _ends(visitor), NotFound)
        assert await _answers(caller)
        await caller.close()
        with pytest.raises(NotFound):
            await service.connect(echoing.id, ECHO_PORT, through=exposure.id)
        await echoing.unexpose(ECHO_PORT)
        again = (await service.expose_port(echoing.id, ExposePort(ECHO_PORT))).exposure
        assert again.id != exposure.id

    async def test_exposed_ports_are_listed(self, service: SandboxService, fresh: AsyncSession) -> None:
        made = [
            (await service.expose_port(fresh.id, ExposePort(port, public=port == 80))).exposure
            for port in (8000, 80)
        ]
        assert await fresh.previews() == list(reversed(made))
        await fresh.unexpose(80)
        assert [exposure.port for exposure in await fresh.previews()] == [8000]
        kinds = [event.kind async for event in fresh.history()]
        assert [kind for kind in kinds if kind.startswith("port.")] == [
            *["port.exposed"] * 2,
            "port.unexposed",
        ]

    async def test_too_many_exposed_ports(self, service: SandboxService, fresh: AsyncSession) -> None:
        for port in range(8000, 8000 + MAX_EXPOSED):
            await service.expose_port(fresh.id, ExposePort(port))
        with pytest.raises(Busy):
            await service.expose_port(fresh.id, ExposePort(80))
        await service.expose_port(fresh.id, ExposePort(8000, public=True))
