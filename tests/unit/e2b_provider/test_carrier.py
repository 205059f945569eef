"""The carrier ends whole, whatever its client library does with a cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog

from sandlot.domain.errors import EngineProblem
from sandlot.providers.e2b import carrier as carrying
from sandlot.providers.e2b.carrier import Carrier
from sandlot.providers.e2b.pieces import Kind, Piece

Receive = Callable[[str], Awaitable[None]]
WITHIN_S = 30


class Process:
    """A relay whose client swallows a cancellation while it writes, as HTTP clients can."""

    def __init__(self) -> None:
        self.writing = asyncio.Event()
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.delivers_late: Callable[[], Awaitable[None]] | None = None
        self.left = False

    async def send(self, text: bytes) -> None:
        self.writing.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return

    async def wait(self) -> None:
        await self.ended

    async def leave(self) -> None:
        if self.delivers_late is not None:
            await self.delivers_late()
        self.left = True


class Remote:
    id = "remote"

    def __init__(self) -> None:
        self.process = Process()
        self.receive: asyncio.Future[Receive] = asyncio.get_running_loop().create_future()

    async def start(self, command: str, receive: Receive) -> Process:
        if not self.receive.done():
            self.receive.set_result(receive)
        return self.process

    async def is_gone(self) -> bool:
        return False


class Worker:
    """The socket of a worker's link. It answers each connection once, and notes those that are open."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.open = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            writer.write(await reader.read(100) or b"none")
            await reader.read()
        finally:
            self.open -= 1
            writer.close()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        async with await asyncio.start_unix_server(self.serve, self.socket):
            yield


async def send(receive: Receive, *pieces: Piece) -> None:
    for piece in pieces:
        await receive(piece.line().decode())


@asynccontextmanager
async def carried(folder: Path) -> AsyncIterator[tuple[Any, Carrier, Worker]]:
    """A carrier that has started, which the test closes."""
    worker = Worker(folder / "agent.sock")
    async with worker.listening():
        remote: Any = Remote()
        carrier = Carrier(remote, "relay", worker.socket, lambda reason: None)
        carrier.start()
        yield remote, carrier, worker


async def write(remote: Any) -> Receive:
    """Let a connection say something, and wait until the relay is writing it."""
    receive: Receive = await remote.receive
    await send(receive, Piece(1, Kind.OPENED), Piece(1, Kind.DATA, b"hello"))
    await asyncio.wait_for(remote.process.writing.wait(), WITHIN_S)
    return receive


def relay_tasks() -> list[asyncio.Task[Any]]:
    return [task for task in asyncio.all_tasks() if task.get_name().startswith(("relay of", "carry the"))]


async def test_a_swallowed_cancellation_leaves_no_task(tmp_path: Path) -> None:
    async with carried(tmp_path) as (remote, carrier, _):
        await write(remote)
        await asyncio.wait_for(carrier.close(), WITHIN_S)
        await asyncio.sleep(0)
        assert not relay_tasks()
    assert remote.process.left


@pytest.mark.parametrize("becomes", ["a process", "an error"])
async def test_a_start_that_swallows_a_cancellation_does_not_hang_close(becomes: str, tmp_path: Path) -> None:
    class Stubborn(Remote):
        def __init__(self) -> None:
            super().__init__()
            self.starting = asyncio.Event()

        async def start(self, command: str, receive: Receive) -> Process:
            self.starting.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if becomes == "an error":
                    raise EngineProblem("The connection was closed.", retryable=True) from None
            return self.process

    remote: Any = Stubborn()
    carrier = Carrier(remote, "relay", tmp_path / "none", lambda reason: None)
    carrier.start()
    await remote.starting.wait()
    await asyncio.wait_for(carrier.close(), WITHIN_S)
    assert not relay_tasks()
    assert remote.process.left == (becomes == "a process")


async def test_close_while_a_broken_relay_ends_still_leaves_it(tmp_path: Path) -> None:
    async with carried(tmp_path) as (remote, carrier, _):
        receive = await write(remote)
        await send(receive, Piece(1, Kind.OPENED))  # the same number again breaks the relay
        await asyncio.wait_for(carrier.close(), WITHIN_S)
        assert not relay_tasks()
    assert remote.process.left


async def test_what_arrives_after_the_end_opens_nothing(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(carrying, "FIRST_PAUSE_S", 3600)
    async with carried(tmp_path) as (remote, carrier, worker):
        receive = await remote.receive
        remote.process.delivers_late = lambda: send(receive, Piece(2, Kind.OPENED))
        remote.process.ended.set_exception(EngineProblem("the stream broke"))
        await asyncio.wait_for(carrier.close(), WITHIN_S)
        assert remote.process.left
        assert (worker.open, relay_tasks()) == (0, [])


async def test_an_unknown_error_is_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged: list[structlog.typing.EventDict]
) -> None:
    """Whether the sandbox is gone is in doubt then, so the next relay starts."""
    monkeypatch.setattr(carrying, "FIRST_PAUSE_S", 0.001)

    class Broken(Remote):
        def __init__(self) -> None:
            super().__init__()
            self.starts = 0
            self.again = asyncio.Event()

        async def start(self, command: str, receive: Receive) -> Process:
            self.starts += 1
            if self.starts == 1:
                raise EngineProblem("the stream broke")
            self.again.set()
            return self.process

        async def is_gone(self) -> bool:
            raise KeyError("state")

    remote: Any = Broken()
    gone: list[str] = []
    carrier = Carrier(remote, "relay", tmp_path / "none", gone.append)
    carrier.start()
    await asyncio.wait_for(remote.again.wait(), WITHIN_S)
    await asyncio.wait_for(carrier.close(), WITHIN_S)
    assert not gone
    assert [event["log_level"] for event in logged if "in an unknown way" in event["event"]] == ["error"]
