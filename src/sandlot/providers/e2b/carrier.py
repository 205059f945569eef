"""Keeps a relay running in a sandbox, and joins its connections to the socket of the worker's link.

What comes from the sandbox is only copied here. The link reads it, and trusts none of it. Lines,
connections and what waits to be sent are bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Coroutine
from pathlib import Path
from typing import Any, Final

import structlog

from sandlot.domain.errors import SandboxLost, SandlotError
from sandlot.providers.e2b.pieces import PIECE_BYTES, BrokenRelay, Kind, Lines, Piece
from sandlot.providers.e2b.service import RemoteProcess, RemoteSandbox
from sandlot.providers.waiting import run_to_completion

log = structlog.get_logger("sandlot.e2b")

ALIVE_EVERY_S: Final = 10.0  # a relay that hears nothing for 45 s ends
MAX_CONNECTIONS: Final = 16  # as many as the relay takes
MAX_WAITING_BYTES: Final = 512 * 1024
MAX_SENT_BYTES: Final = 256 * 1024  # in one request
FIRST_PAUSE_S: Final = 0.2
LONGEST_PAUSE_S: Final = 10.0
CANCEL_AGAIN_AFTER_S: Final = 0.5
LEAVE_WITHIN_S: Final = 5.0  # what the SDK does not give up by then ends with its connection
CLOSE_WITHIN_S: Final = 20.0  # a relay's end, and the SDK's calls around it
STEADY_S: Final = 30.0  # a relay that lived so long was good: the next one starts at once


class Carrier:
    """``on_gone`` is called once, when E2B has ended the sandbox, or the agent in it has ended."""

    def __init__(
        self, remote: RemoteSandbox, command: str, socket: Path, on_gone: Callable[[str], None]
    ) -> None:
        self._remote = remote
        self._command = command
        self._socket = socket
        self._on_gone = on_gone
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"carry the link of {self._remote.id}")

    async def close(self) -> None:
        if self._task is not None:
            await _end((self._task,), CLOSE_WITHIN_S)
            if not self._task.done():
                log.error("a sandbox's relay did not end", sandbox=self._remote.id)

    async def _run(self) -> None:
        loop, pause = asyncio.get_running_loop(), FIRST_PAUSE_S
        while True:
            began = loop.time()
            try:
                await _Relay(self._remote, self._command, self._socket).run()
                why = "it ended"
            except SandboxLost as error:
                self._on_gone(error.message)
                return
            except (SandlotError, BrokenRelay, OSError) as error:
                why = str(error)
            except Exception as error:
                log.exception("a sandbox's relay failed in an unknown way", sandbox=self._remote.id)
                why = str(error)
            if await self._is_gone():
                self._on_gone("E2B has ended the sandbox")
                return
            log.warning("a sandbox's relay broke; starting another", sandbox=self._remote.id, why=why)
            pause = FIRST_PAUSE_S if loop.time() - began > STEADY_S else min(pause * 2, LONGEST_PAUSE_S)
            await asyncio.sleep(pause)

    async def _is_gone(self) -> bool:
        """In doubt it is there: nobody could reach the sandbox if this task ended with an error."""
        try:
            return await self._remote.is_gone()
        except Exception:
            log.exception(
                "cannot ask E2B in an unknown way whether a sandbox is there", sandbox=self._remote.id
            )
            return False


class _Relay:
    def __init__(self, remote: RemoteSandbox, command: str, socket: Path) -> None:
        self._remote = remote
        self._command = command
        self._socket = socket
        self._lines = Lines()
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting = bytearray()
        self._changed = asyncio.Condition()
        self._over = False
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Until the relay ends, or something about it fails."""
        process: RemoteProcess | None = None
        try:
            process = await self._remote.start(self._command, self._receive)
            self._spawn(self._send(process))
            self._spawn(self._say_alive())
            ended = asyncio.ensure_future(process.wait())
            self._tasks.add(ended)
            ended.add_done_callback(self._tasks.discard)
            await asyncio.wait((ended, self._failure), return_when=asyncio.FIRST_COMPLETED)
            if self._failure.done():
                self._failure.result()
            await ended
        finally:
            await run_to_completion(self._leave(process))

    async def _leave(self, process: RemoteProcess | None) -> None:
        self._over = True  # the SDK may still deliver what it had in hand
        await _end(self._tasks, LEAVE_WITHIN_S)
        for writer in self._writers.values():
            writer.transport.abort()
        if self._failure.done():
            self._failure.exception()
        if process is not None:
            await process.leave()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        async def watched() -> None:
            try:
                await work
            except Exception as error:  # noqa: BLE001  # _run logs those that it does not expect
                if not self._failure.done():
                    self._failure.set_exception(error)

        task = asyncio.create_task(watched(), name=f"relay of {self._remote.id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- from the sandbox ---------------------------------------------------------------------

    async def _receive(self, text: str) -> None:
        """Called by the SDK with what the relay wrote. It reads no more until this returns."""
        if self._over:
            return
        try:
            for piece in self._lines.receive(text):
                await self._deliver(piece)
        except (SandboxLost, BrokenRelay, OSError) as error:
            if not self._failure.done():
                self._failure.set_exception(error)

    async def _deliver(self, piece: Piece) -> None:
        if piece.kind is Kind.OPENED:
            if piece.number in self._writers or len(self._writers) >= MAX_CONNECTIONS:
                raise BrokenRelay("it opens too many connections")
            try:
                reader, writer = await asyncio.open_unix_connection(str(self._socket))
            except OSError:  # the link is closed for good, or will listen again
                await self._queue(Piece(piece.number, Kind.CLOSED))
                return
            if self._over:
                writer.transport.abort()
                return
            self._writers[piece.number] = writer
            self._spawn(self._pump(piece.number, reader))
        elif piece.kind is Kind.DATA:
            known = self._writers.get(piece.number)
            if known is not None:
                known.write(piece.data)
                with contextlib.suppress(ConnectionError):  # the pump tells the relay
                    await known.drain()
        elif piece.kind is Kind.CLOSED:
            self._hang_up(piece.number)
        elif piece.kind is Kind.GONE:
            raise SandboxLost("the sandbox's agent has ended")
        else:
            raise BrokenRelay(f"it sends {piece.kind.name}")

    # --- to the sandbox -----------------------------------------------------------------------

    async def _pump(self, number: int, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(PIECE_BYTES):
                await self._queue(Piece(number, Kind.DATA, data))
        if self._hang_up(number):
            await self._queue(Piece(number, Kind.CLOSED))

    def _hang_up(self, number: int) -> bool:
        """Whether the connection was still there."""
        writer = self._writers.pop(number, None)
        if writer is not None:
            writer.close()
        return writer is not None

    async def _queue(self, piece: Piece) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: len(self._waiting) < MAX_WAITING_BYTES)
            self._waiting += piece.line()
            self._changed.notify_all()

    async def _send(self, process: RemoteProcess) -> None:
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: bool(self._waiting))
                text = bytes(self._waiting[:MAX_SENT_BYTES])
                del self._waiting[:MAX_SENT_BYTES]
                self._changed.notify_all()
            await process.send(text)

    async def _say_alive(self) -> None:
        while True:
            await asyncio.sleep(ALIVE_EVERY_S)
            await self._queue(Piece(0, Kind.ALIVE))


async def _end(tasks: Collection[asyncio.Future[Any]], within_s: float) -> None:
    """Cancels until all have ended: a call of the SDK can swallow a cancellation."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    while (left := [task for task in tasks if not task.done()]) and loop.time() < deadline:
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=CANCEL_AGAIN_AFTER_S)
