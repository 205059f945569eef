"""Sessions over HTTP.

Each create carries a key, so that sending it twice makes only one session.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from typing import Final

import anyio
import msgspec

from sandlot.client.http.calls import EXECUTE_READ_S, ServiceCalls
from sandlot.client.http.paths import session_path
from sandlot.client.http.retries.creates import Patience, until_created
from sandlot.client.http.transport.request import encode, header, query
from sandlot.domain.errors import SandlotError
from sandlot.domain.service import Opened, SessionPage
from sandlot.domain.session import CreateSession, Session, SessionChange
from sandlot.wire.http_bodies import CreateSessionBody, SessionChangeBody, SessionPageBody

# A caller that is cancelled during a create waits at most this long, as a busy engine may.
UNDO_WITHIN_S: Final = 30.0

_SESSIONS: Final = msgspec.json.Decoder(SessionPageBody)


class SessionOperations(ServiceCalls):
    """The session methods of ``HttpService``."""

    async def create_session(self, request: CreateSession) -> Opened:
        if request.idempotency_key is not None or request.thread is not None:
            key = request.idempotency_key or secrets.token_hex(16)
            return await self._create(request, key, self._patience_s)
        key = secrets.token_hex(16)
        try:
            return await self._create(request, key, self._patience_s)
        except asyncio.CancelledError:
            # The session may exist nevertheless. Only we have its key, so delete it here.
            with anyio.move_on_after(UNDO_WITHIN_S, shield=True), contextlib.suppress(SandlotError):
                await self.delete_session((await self._create(request, key, 0)).session.id)
            raise

    async def _create(self, request: CreateSession, key: str, patience_s: float) -> Opened:
        encoded, headers = encode(CreateSessionBody.of(request).to_wire()), {"Idempotency-Key": header(key)}

        async def post() -> tuple[int, bytes]:
            return await self._connection.call_once(
                "POST", "/v1/sessions", encoded, headers=headers, read_timeout_s=EXECUTE_READ_S
            )

        status, body = await until_created(post, Patience(self._connection, patience_s))
        return Opened(self._session(body), status == 201)

    async def get_session(self, session_id: str) -> Session:
        return self._session(await self._get(session_path(session_id)))

    async def list_sessions(
        self, *, thread: str | None = None, after: str | None = None, limit: int = 100
    ) -> SessionPage:
        path = "/v1/sessions" + query(thread=thread, after=after, limit=limit)
        page: SessionPage = self._connection.decode(_SESSIONS, await self._get(path)).to_domain()
        for session in page.sessions:
            self._record_session(session)
        return page

    async def update_session(self, session_id: str, change: SessionChange) -> Session:
        body = encode(SessionChangeBody.of(change))
        path = session_path(session_id)
        return self._session(await self._calls_to(session_id).call("PATCH", path, body, repeatable=True))

    async def recreate_session(self, session_id: str) -> Session:
        path = session_path(session_id) + "/recreate"
        return self._session(await self._call("POST", path, repeatable=False))

    async def delete_session(self, session_id: str) -> None:
        await self._calls_to(session_id).call("DELETE", session_path(session_id), repeatable=True)
        self._routes.forget(session_id)
