"""What the view asks a server for. Answers are bounded, however much the server has."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sandlot.cli.top.activity import KINDS, MINUTES
from sandlot.client.async_exec import AsyncExec
from sandlot.client.http.fleet import FleetOperator
from sandlot.domain.errors import Forbidden, Unsupported

if TYPE_CHECKING:
    from sandlot.client.async_client import AsyncClient
    from sandlot.domain.computer import ExecSummary
    from sandlot.domain.history.events import Event
    from sandlot.domain.service import ServiceHealth
    from sandlot.domain.session import Session
    from sandlot.wire.fleet_bodies import WorkerBody

# More sessions than these are counted by the server, but neither listed nor searched.
MAX_SESSIONS: Final = 5_000
PAGE: Final = 1_000
# How much of a command's output is shown: its end.
OUTPUT_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Overview:
    """``workers``: of a fleet, if the key may see them."""

    health: ServiceHealth
    workers: tuple[WorkerBody, ...] = ()


class Source:
    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def overview(self) -> Overview:
        health = await self._client.health()
        return Overview(health, () if health.workers is None else await self._workers())

    async def _workers(self) -> tuple[WorkerBody, ...]:
        service = self._client.service
        if not isinstance(service, FleetOperator):
            return ()
        try:
            return tuple((await service.fleet()).workers)
        except (Forbidden, Unsupported):
            return ()

    async def sessions(self) -> list[Session]:
        """The sessions, newest first."""
        service = await self._client.opened()
        found: list[Session] = []
        after: str | None = None
        while len(found) < MAX_SESSIONS:
            page = await service.list_sessions(after=after, limit=PAGE)
            found += page.sessions
            if page.next is None:
                break
            after = page.next
        return found[::-1]

    async def session(self, session_id: str) -> Session:
        return (await self._client.get(session_id)).info

    async def delete(self, session_id: str) -> None:
        await (await self._client.opened()).delete_session(session_id)

    def events(self) -> AsyncGenerator[Event, None]:
        """What happened in the last minutes, and what happens from now on."""
        since = time.time() - MINUTES * 60
        return self._client.events(kinds=KINDS, since=since, follow=True, partial=True)

    async def execs(self, session_id: str) -> list[ExecSummary]:
        """The commands that the sandbox knows, the latest first."""
        execs = await (await self._client.opened()).list_execs(session_id)
        return sorted(execs, key=lambda one: one.started_at or 0.0, reverse=True)

    async def output(self, session_id: str, summary: ExecSummary) -> str:
        """The end of what a command has written so far."""
        handle = AsyncExec(await self._client.opened(), session_id, summary.exec_id)
        start = max(0, (summary.output_end or 0) - OUTPUT_BYTES)
        return (await handle.read(start)).marked_text

    async def kill(self, session_id: str, exec_id: str) -> None:
        await AsyncExec(await self._client.opened(), session_id, exec_id).kill()
