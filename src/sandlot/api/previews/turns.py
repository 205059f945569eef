"""Lets so many visits of one session work at once. Others wait for their turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from sandlot.api.previews.pages import Refused

# How many sessions it takes, with as many visitors as each can have, to leave none for others.
SESSIONS_TO_FILL: Final = 4


class Turns:
    """``total``: how many visits there may be, those that wait included; a quarter of them of one session."""

    def __init__(self, per_session: int, total: int, wait_s: float) -> None:
        self._per_session = per_session
        self._total = total
        self._share = max(per_session, total // SESSIONS_TO_FILL)
        self._wait_s = wait_s
        self._visits = 0
        # Semaphore and number of visits that use it or wait for it.
        self._sessions: dict[str, tuple[asyncio.Semaphore, int]] = {}

    @asynccontextmanager
    async def turn(self, session_id: str) -> AsyncIterator[None]:
        """Raises ``Refused`` if the turn does not come in time, or too many visits wait already."""
        semaphore, users = self._sessions.get(session_id) or (asyncio.Semaphore(self._per_session), 0)
        if self._visits >= self._total or users >= self._share:
            raise _busy()
        self._sessions[session_id] = semaphore, users + 1
        self._visits += 1
        try:
            try:
                async with asyncio.timeout(self._wait_s):
                    await semaphore.acquire()
            except TimeoutError:
                raise _busy() from None
            try:
                yield
            finally:
                semaphore.release()
        finally:
            self._visits -= 1
            _, users = self._sessions[session_id]
            if users > 1:
                self._sessions[session_id] = semaphore, users - 1
            else:
                del self._sessions[session_id]


def _busy() -> Refused:
    return Refused(503, "Too many visitors", "Too many requests are open. Reload this page in a moment.")
