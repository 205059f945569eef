"""Single calls to a server over the best route, and what the answers say about sessions."""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from sandlot.client.http.paths import session_path, thread_path
from sandlot.client.http.retries.rules import MAX_OUTAGE_S
from sandlot.client.http.routing.routes import Routes
from sandlot.client.http.routing.sandboxes_seen import SandboxesSeen, SandboxSeen
from sandlot.client.http.routing.session_calls import SessionCalls
from sandlot.client.http.streams.execution import HttpExecution
from sandlot.client.http.transport.connection import ApiKey, Connection, Decoder
from sandlot.client.http.transport.pools import run_on_loop
from sandlot.client.options import PATIENCE_S
from sandlot.domain.service import Access
from sandlot.domain.session import Session
from sandlot.wire.http_bodies import SessionBody

# When ``execute`` has had no answer for this long, the client asks for the result by the exec id.
EXECUTE_READ_S: Final = 90.0

_SESSION: Final = msgspec.json.Decoder(SessionBody)

T = TypeVar("T")


class ServiceCalls:
    """The base of ``HttpService``: holds the connections and makes single calls."""

    def __init__(
        self,
        url: str,
        api_key: ApiKey = None,
        *,
        direct: bool = True,
        connection: Connection | None = None,
        max_outage_s: float = MAX_OUTAGE_S,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """Connect to the server at ``url``.

        ``direct``: send a session's calls straight to its worker if the server says how
        (``routing/routes.py``). ``connection``: use this one instead of ``url`` and ``api_key``.
        ``max_outage_s``: how long the server may be unreachable while one of our commands may be
        running on it. ``patience_s``: how long a create waits for a server that recovers by itself
        (``retries/creates.py``).
        """
        self._connection = connection or Connection(url, api_key)
        self._direct = direct
        self._max_outage_s = max_outage_s
        self._patience_s = patience_s
        self._routes = Routes(self._connection, self._fetch_access)
        self._executions: set[HttpExecution] = set()
        self._sandboxes = SandboxesSeen()

    @property
    def url(self) -> str:
        return self._connection.url

    async def close(self) -> None:
        await self.release()
        await self._connection.close()

    async def release(self) -> None:
        """Close everything except the connection, for a service that shares it with another one."""
        for execution in list(self._executions):
            await run_on_loop(execution.loop, execution.detach)
        await self._routes.close()

    # single calls

    async def _get(self, path: str) -> bytes:
        return await self._call("GET", path, repeatable=True)

    async def _call(self, method: str, path: str, body: bytes | None = None, *, repeatable: bool) -> bytes:
        _, answer = await self._connection.call(method, path, body, repeatable=repeatable)
        return answer

    def _calls_to(self, session_id: str) -> SessionCalls:
        return SessionCalls(self._routes, session_id)

    async def _read(self, session_id: str, decoder: Decoder[T], path: str) -> T:
        calls = self._calls_to(session_id)
        decoded: T = calls.decode(decoder, await calls.call("GET", path, repeatable=True))
        return decoded

    def _session(self, body: bytes) -> Session:
        decoded: SessionBody = self._connection.decode(_SESSION, body)
        return self._record_decoded(decoded)

    async def _fetch_access(self, session_id: str) -> Access | None:
        _, body = await self._connection.call_once("GET", session_path(session_id))
        decoded: SessionBody = self._connection.decode(_SESSION, body)
        self._record_decoded(decoded)
        return decoded.access

    def _record_decoded(self, decoded: SessionBody) -> Session:
        session = decoded.to_domain()
        self._record_session(session)
        if decoded.access is not None and self._direct:
            self._routes.record(session.id, decoded.access)
        return session

    def _record_session(self, session: Session) -> None:
        sandbox = SandboxSeen.of(session)
        self._sandboxes.record(session_path(session.id), sandbox)
        if session.thread is not None:
            self._sandboxes.record(thread_path(session.thread), sandbox)
