"""Whether sandboxes that somebody waits for still answer.

A container can be paused, or be so busy that its agent has no turn: its connection stays, and nothing comes.
Such a sandbox is `unresponsive`: calls on it end, later ones are refused at once, and it is asked on, because
it may answer again. Sessions that nobody uses are not asked.
"""

from __future__ import annotations

import asyncio

import structlog

from sandlot.domain.errors import LinkInterrupted, SandlotError
from sandlot.providers.base import Sandbox
from sandlot.worker.live import Live
from sandlot.worker.table import SessionTable

log = structlog.get_logger("sandlot.pulse")

# Seconds between two questions to a sandbox, and in which it has to answer one.
ASK_EVERY_S = 5.0
ANSWER_WITHIN_S = 4.0
# Questions in a row that stay without an answer before a sandbox is called unresponsive: 15 s and more, which
# a machine under heavy load does not take either to answer from memory.
UNANSWERED = 3


class Pulse:
    def __init__(self, table: SessionTable) -> None:
        self._table = table
        self._asking: dict[str, asyncio.Task[None]] = {}  # session → the question to its sandbox

    async def look(self) -> None:
        """Asks those that somebody waits for, or that did not answer before."""
        for live in self._table:
            wanted = live.calls or live.readers or live.suspected or live.unresponsive_since is not None
            session_id = live.session.id
            if live.sandbox is None or not wanted:
                live.unanswered = 0
            elif session_id not in self._asking:
                asking = self._ask(live, live.sandbox)
                self._asking[session_id] = asyncio.create_task(asking, name=f"pulse of {session_id}")

    async def close(self) -> None:
        tasks = list(self._asking.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _ask(self, live: Live, sandbox: Sandbox) -> None:
        session_id = live.session.id
        try:
            answered = await _answers(sandbox)
        finally:
            del self._asking[session_id]
        if live.sandbox is not sandbox:  # of another one, or of none, it says nothing
            live.unanswered = 0
        elif answered:
            if live.unresponsive_since is not None:
                log.info("sandbox answers again", session=session_id)
            live.answers()
        elif live.left_unanswered() >= UNANSWERED and live.unresponsive_since is None:
            log.warning("sandbox does not answer", session=session_id, sandbox=sandbox.id)
            live.fell_silent()


async def _answers(sandbox: Sandbox) -> bool:
    try:
        async with asyncio.timeout(ANSWER_WITHIN_S):
            await sandbox.health()
    except (TimeoutError, LinkInterrupted):
        return False
    except SandlotError:  # a refusal is an answer, and a loss is told by whoever watches for it
        return True
    return True
