"""Probes the sandboxes that callers wait for, to find those that no longer answer.

A container can be paused, or so busy that its agent never runs. Its connection stays open, but
nothing arrives. Such a sandbox is `unresponsive`: calls in progress fail, and new calls are refused
at once. The worker goes on probing it, because it may answer again. It does not probe sessions that
are not in use.
"""

from __future__ import annotations

import asyncio

import structlog

from sandlot.domain.errors import LinkInterrupted, SandlotError
from sandlot.providers.base import Sandbox
from sandlot.worker.sessions.live_session import LiveSession
from sandlot.worker.sessions.table import SessionTable

log = structlog.get_logger("sandlot.responsiveness")

# Seconds between two probes of a sandbox, and seconds that it has to answer one.
ASK_EVERY_S = 5.0
ANSWER_WITHIN_S = 4.0
# A sandbox counts as unresponsive after this many unanswered probes in a row, which takes 15 s or
# more. Even on a machine under heavy load, an agent answers from memory faster than that.
UNANSWERED = 3


class ResponsivenessMonitor:
    def __init__(self, table: SessionTable) -> None:
        self._table = table
        self._probes: dict[str, asyncio.Task[None]] = {}  # session id → the probe of its sandbox

    async def check(self) -> None:
        """Probe the sandboxes that callers wait for, and those that did not answer before."""
        for live_session in self._table:
            wanted = (
                live_session.calls
                or live_session.event_readers
                or live_session.suspected
                or live_session.unresponsive_since is not None
            )
            session_id = live_session.session.id
            if live_session.sandbox is None or live_session.copying or not wanted:
                live_session.unanswered = 0
            elif session_id not in self._probes:
                probe = self._probe(live_session, live_session.sandbox)
                self._probes[session_id] = asyncio.create_task(probe, name=f"pulse of {session_id}")

    async def close(self) -> None:
        tasks = list(self._probes.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _probe(self, live_session: LiveSession, sandbox: Sandbox) -> None:
        session_id = live_session.session.id
        try:
            answered = await _responds(sandbox)
        finally:
            del self._probes[session_id]
        if live_session.sandbox is not sandbox:  # the session has another sandbox now, or none
            live_session.unanswered = 0
        elif answered:
            if live_session.unresponsive_since is not None:
                log.info("sandbox answers again", session=session_id)
            live_session.mark_responsive()
        elif live_session.record_unanswered() >= UNANSWERED and live_session.unresponsive_since is None:
            log.warning("sandbox does not answer", session=session_id, sandbox=sandbox.id)
            live_session.mark_unresponsive()


async def _responds(sandbox: Sandbox) -> bool:
    try:
        async with asyncio.timeout(ANSWER_WITHIN_S):
            await sandbox.health()
    except (TimeoutError, LinkInterrupted):
        return False
    except SandlotError:  # a refusal is an answer, and the watcher reports losses
        return True
    return True
