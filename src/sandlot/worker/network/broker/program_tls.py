"""TLS with a program inside: the worker shows a certificate for the host that the program wants."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from sandlot.providers.base import ByteStream
from sandlot.worker.network.streams import PIECE_BYTES

T = TypeVar("T")


class ProgramTls(ByteStream):
    """Implements ``ByteStream`` over another one. ``first``: what the program has sent already."""

    def __init__(self, stream: ByteStream, context: ssl.SSLContext, first: bytes) -> None:
        self._stream = stream
        self._received, self._to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._received.write(first)
        self._tls = context.wrap_bio(self._received, self._to_send, server_side=True)
        self._flushing = asyncio.Lock()

    async def handshake(self) -> None:
        """Raises ``OSError`` if the program does not accept the certificate."""
        try:
            await self._until_done(self._tls.do_handshake)
        except ssl.SSLError:
            await self._flush()  # the alert that says why
            raise

    async def receive(self) -> bytes:
        try:
            return await self._until_done(partial(self._tls.read, PIECE_BYTES))
        except ssl.SSLZeroReturnError:
            return b""

    async def send(self, data: bytes) -> None:
        self._tls.write(data)  # into memory, which takes all of it
        await self._flush()

    async def send_end(self) -> None:
        with contextlib.suppress(ssl.SSLError):  # it waits for the program's own end, which need not come
            self._tls.unwrap()
        await self._flush()
        await self._stream.send_end()

    def abort(self) -> None:
        self._stream.abort()

    async def _until_done(self, step: Callable[[], T]) -> T:
        while True:
            try:
                done = step()
            except ssl.SSLWantReadError:
                await self._flush()
                if data := await self._stream.receive():
                    self._received.write(data)
                else:
                    self._received.write_eof()
            else:
                await self._flush()
                return done

    async def _flush(self) -> None:
        async with self._flushing:  # a request and its answer pass at the same time
            if data := self._to_send.read():
                await self._stream.send(data)
