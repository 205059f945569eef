"""Counts what a session sends and receives, and keeps it within its caps."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from sandlot.domain.network.caps import Caps
from sandlot.domain.network.status import Traffic
from sandlot.providers.link.allowance import Allowance

# Between two pieces, if more than one connection is busy. Together they then pass about 110 MB/s.
REST_S: Final = 0.001


class BytesUsedUp(Exception):
    """The session has sent and received as many bytes as it may."""


class PieceTurns:
    """Lets one piece pass at a time, and rests in between. One for all sessions of a worker.

    A call to the worker takes several turns of the event loop, and a command needs the processor. Without a
    limit, each turn copies a piece for every busy connection: beside 50 downloads, ``echo`` takes 27 times as
    long as alone. With a piece for each turn it takes 3.6 times as long, and with rests 2 times.
    """

    def __init__(self) -> None:
        self._taken = False
        self._waiting = deque[asyncio.Future[None]]()

    async def take(self) -> None:
        """Wait until a piece may pass: first come, first served."""
        loop = asyncio.get_running_loop()
        if self._taken:
            self._waiting.append(turn := loop.create_future())
            await turn
        else:
            self._taken = True
            loop.call_soon(self._next, loop)

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._waiting:
            if not (turn := self._waiting.popleft()).done():
                turn.set_result(None)
                loop.call_later(REST_S, self._next, loop)
                return
        self._taken = False


class Meter:
    """``total``: what all sessions of the worker do together, counted along."""

    def __init__(self, caps: Callable[[], Caps], turns: PieceTurns, total: Traffic) -> None:
        self._caps = caps
        self._turns = turns
        self._total = total
        self._pace: tuple[int, Allowance] | None = None
        self.traffic = Traffic()

    def snapshot(self) -> Traffic:
        return replace(self.traffic)

    def add(self, **counts: int) -> None:
        """Add to these fields of the traffic."""
        for name, count in counts.items():
            setattr(self.traffic, name, getattr(self.traffic, name) + count)
            setattr(self._total, name, getattr(self._total, name) + count)

    @property
    def full(self) -> bool:
        return self.traffic.open >= self._caps().connections

    def check_bytes(self) -> None:
        cap = self._caps().bytes
        if cap is not None and self.traffic.sent_bytes + self.traffic.received_bytes >= cap:
            raise BytesUsedUp

    async def sending(self, size: int) -> None:
        """Wait until so many bytes may be sent."""
        self.add(sent_bytes=size)
        await self._pass(size)

    async def receiving(self, size: int) -> None:
        """Wait until so many bytes may be handed on. Until then nothing more is read from the host."""
        self.add(received_bytes=size)
        await self._pass(size)

    async def _pass(self, size: int) -> None:
        caps = self._caps()
        if caps.bytes is not None and self.traffic.sent_bytes + self.traffic.received_bytes > caps.bytes:
            raise BytesUsedUp
        await self._turns.take()
        if caps.bytes_per_s is None:
            return
        now = asyncio.get_running_loop().time()
        if self._pace is None or self._pace[0] != caps.bytes_per_s:
            pace = Allowance(per_s=caps.bytes_per_s, burst=caps.bytes_per_s, now=now)
            self._pace = (caps.bytes_per_s, pace)
        overdrawn_s = self._pace[1].take(size, now)
        if overdrawn_s:
            await asyncio.sleep(overdrawn_s)
