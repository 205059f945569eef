"""Counts what a session sends and receives, and keeps it within its caps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from sandlot.domain.network.caps import Caps
from sandlot.domain.network.status import Traffic
from sandlot.providers.link.allowance import Allowance


class BytesUsedUp(Exception):
    """The session has sent and received as many bytes as it may."""


class Meter:
    def __init__(self, caps: Callable[[], Caps]) -> None:
        self._caps = caps
        self._pace: tuple[int, Allowance] | None = None
        self.traffic = Traffic()

    def snapshot(self) -> Traffic:
        return replace(self.traffic)

    @property
    def full(self) -> bool:
        return self.traffic.open >= self._caps().connections

    def check_bytes(self) -> None:
        cap = self._caps().bytes
        if cap is not None and self.traffic.sent_bytes + self.traffic.received_bytes >= cap:
            raise BytesUsedUp

    async def sending(self, size: int) -> None:
        """Wait until so many bytes may be sent."""
        self.traffic.sent_bytes += size
        await self._pass(size)

    async def receiving(self, size: int) -> None:
        """Wait until so many bytes may be handed on. Until then nothing more is read from the host."""
        self.traffic.received_bytes += size
        await self._pass(size)

    async def _pass(self, size: int) -> None:
        caps = self._caps()
        if caps.bytes is not None and self.traffic.sent_bytes + self.traffic.received_bytes > caps.bytes:
            raise BytesUsedUp
        if caps.bytes_per_s is None:
            return
        now = asyncio.get_running_loop().time()
        if self._pace is None or self._pace[0] != caps.bytes_per_s:
            pace = Allowance(per_s=caps.bytes_per_s, burst=caps.bytes_per_s, now=now)
            self._pace = (caps.bytes_per_s, pace)
        overdrawn_s = self._pace[1].take(size, now)
        if overdrawn_s:
            await asyncio.sleep(overdrawn_s)
