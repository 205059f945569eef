"""A session's ports: connections to them, and which of them are exposed.

Opening a connection and sending into it count as use of the session. An open connection alone does not: a
forgotten browser tab must not keep a session alive.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final

from sandlot.domain.callers.principal import Principal
from sandlot.domain.computer import ByteStream
from sandlot.domain.errors import LinkInterrupted, NotFound, SandboxLost, SandlotError
from sandlot.domain.network.ports import (
    ExposePort,
    Exposure,
    check_port,
    check_room,
    exposed,
    exposure_of,
    new_exposure_id,
    nothing_listens_error,
    unexposed,
)
from sandlot.domain.session import Session
from sandlot.worker.sessions.lifecycle import SessionLifecycle
from sandlot.worker.sessions.live_session import LiveSession

# Seconds for the agent to connect. It gives up by itself after ten.
CONNECT_WITHIN_S: Final = 15.0
# Seconds in which neither side sends anything.
IDLE_S: Final = 3600.0

Explain = Callable[[SandboxLost], Awaitable[SandlotError]]


class SessionPorts:
    """The ports of one caller's sessions."""

    def __init__(self, sessions: SessionLifecycle, caller: Principal) -> None:
        self._sessions = sessions
        self._caller = caller

    async def connect(self, session_id: str, port: int, through: str) -> ByteStream:
        """``through``: the exposure that the connection needs; empty for a caller's own connection."""
        check_port(port)
        using = self._sessions.use(self._caller.tenant, session_id)
        async with using as (live_session, sandbox), live_session.awaiting_response(CONNECT_WITHIN_S):
            if through:
                through = exposure_of(live_session.session.exposed, port, through).id
            check_room(len(live_session.port_streams), session_id)

            async def explain(error: SandboxLost) -> SandlotError:
                return await self._sessions.explain(live_session, sandbox, error)

            stream = SessionPortStream(live_session, port, through, explain)
            live_session.port_streams.add(stream)  # before the connection exists, so that it is counted
            try:
                stream.joined(await sandbox.connect(f"localhost:{port}"))
            except NotFound:
                raise nothing_listens_error(port) from None
            finally:
                if not stream.open:
                    live_session.port_streams.discard(stream)
            return stream

    async def expose(self, session_id: str, request: ExposePort) -> Exposure:
        live_session, new_id = self._sessions.table.get(self._caller.tenant, session_id), new_exposure_id()

        def changed(session: Session) -> Session:
            return replace(session, exposed=exposed(session.exposed, request, new_id))

        exposure = exposure_of((await self._sessions.rewrite(live_session, changed)).exposed, request.port)
        self._sessions.history.recorder.port_exposed(live_session.session, exposure, self._caller)
        return exposure

    async def unexpose(self, session_id: str, port: int) -> None:
        """Ends the connections through it too."""
        live_session = self._sessions.table.get(self._caller.tenant, session_id)

        def changed(session: Session) -> Session:
            return replace(session, exposed=unexposed(session.exposed, port))

        if changed(live_session.session) == live_session.session:
            return
        await self._sessions.rewrite(live_session, changed)
        for stream in list(live_session.port_streams):
            if stream.through and stream.port == port:
                stream.end(NotFound(f"Port {port} is no longer exposed."))
        self._sessions.history.recorder.port_unexposed(live_session.session, port, self._caller)

    def exposures(self, session_id: str) -> tuple[Exposure, ...]:
        return self._sessions.table.get(self._caller.tenant, session_id).session.exposed


class SessionPortStream(ByteStream):
    """Implements ``ByteStream`` for a session: it ends with the session, with its exposure, or when idle."""

    def __init__(self, live_session: LiveSession, port: int, through: str, explain: Explain) -> None:
        self.port = port
        self.through = through
        self._live_session = live_session
        self._explain = explain
        self._inner: ByteStream | None = None
        self._ended: SandlotError | None = None
        self._waits: set[asyncio.Timeout] = set()
        self._touch()

    @property
    def open(self) -> bool:
        return self._inner is not None

    def joined(self, inner: ByteStream) -> None:
        self._inner = inner

    def end(self, error: SandlotError) -> None:
        """End the connection now. Those who use it get the error."""
        self._ended = error
        for wait in self._waits:
            if not wait.expired():
                wait.reschedule(0)

    async def receive(self) -> bytes:
        async with self._using() as inner:
            data = await inner.receive()
        self._touch()
        return data

    async def send(self, data: bytes) -> None:
        async with self._using() as inner:
            await inner.send(data)
        self._touch()
        self._live_session.touch()

    async def send_end(self) -> None:
        async with self._using() as inner:
            await inner.send_end()

    def abort(self) -> None:
        self._live_session.port_streams.discard(self)
        if self._inner is not None:
            self._inner.abort()

    @asynccontextmanager
    async def _using(self) -> AsyncIterator[ByteStream]:
        assert self._inner is not None
        if self._ended is not None:
            raise self._ended
        limit = asyncio.timeout_at(self._idle_at)
        self._waits.add(limit)
        try:
            async with self._live_session.awaiting_response(), limit:
                yield self._inner
        except TimeoutError:
            raise self._end_error() from None
        except SandboxLost as error:
            raise await self._explain(error) from error
        finally:
            self._waits.discard(limit)

    def _end_error(self) -> SandlotError:
        return self._ended or LinkInterrupted(
            f"The connection to port {self.port} was closed: nothing was sent for {IDLE_S:.0f} s."
        )

    def _touch(self) -> None:
        self._idle_at = asyncio.get_running_loop().time() + IDLE_S
        for wait in self._waits:
            if not wait.expired():
                wait.reschedule(self._idle_at)
