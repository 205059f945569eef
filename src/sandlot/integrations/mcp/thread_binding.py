"""``ThreadBinding``: decides which thread's sandbox a call uses."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable
from typing import Any, Final, Protocol

from mcp.server.mcpserver import Context

from sandlot.client.async_client import AsyncClient
from sandlot.client.async_session import AsyncSession
from sandlot.domain.callers.principal import Principal
from sandlot.domain.errors import InvalidRequest, NotFound
from sandlot.integrations.sandboxes import Sandboxes

THREAD_HEADER: Final = "X-Thread-Id"

ClientOf = Callable[[Principal], AsyncClient]


class ThreadBinding(Protocol):
    async def session(self, ctx: Context[Any, Any]) -> AsyncSession:
        """The session of the call's thread."""
        ...

    def forget(self) -> None:
        """Allow the next call to create a new session if the previous one has ended."""
        ...


class ProcessBinding:
    """One thread for the whole process. The first call creates its sandbox.

    Without a ``thread`` the process uses a random one. If the session has ended, calls report that,
    and only ``forget`` lets a new one be created: a client that stays open overnight must not
    continue in an empty sandbox without noticing.
    """

    def __init__(
        self, client: AsyncClient, *, thread: str | None = None, environment: str | None = None
    ) -> None:
        self._client = client
        self._sandboxes = Sandboxes(client, environment=environment)
        self._keep_sandbox = thread is not None
        self._thread = f"mcp-{secrets.token_hex(12)}" if thread is None else thread
        self._open_lock = asyncio.Lock()
        self._session_id: str | None = None
        self._create_attempted = False

    async def session(self, ctx: Context[Any, Any]) -> AsyncSession:
        async with self._open_lock:
            if self._session_id is None:
                session = await self._open()
                self._session_id = session.id
                return session
        return await self._client.get(self._session_id)

    def forget(self) -> None:
        self._session_id = None

    async def end(self) -> None:
        """Delete the sandbox, unless the caller named its thread in order to return to it."""
        if self._keep_sandbox or not self._create_attempted:
            return
        if self._session_id is None:
            # Create again rather than look it up: this waits for a create still in progress.
            self._session_id = (await self._open()).id
        with contextlib.suppress(NotFound):  # it has already ended
            await (await self._client.opened()).delete_session(self._session_id)

    async def _open(self) -> AsyncSession:
        self._create_attempted = True
        return await self._sandboxes.arun(self._thread, _return_session)


class HeaderBinding:
    """The thread that the request names in its header, among those of the caller's tenant.

    The API's edge has admitted the request and says who makes it. ``client_of`` gives a client that acts
    for that caller.
    """

    def __init__(self, client_of: ClientOf) -> None:
        self._client_of = client_of

    async def session(self, ctx: Context[Any, Any]) -> AsyncSession:
        thread = (ctx.headers or {}).get(THREAD_HEADER.lower(), "").strip()
        if not thread:
            # There is no default: two conversations without an id must not share a sandbox.
            raise InvalidRequest(
                f"Missing {THREAD_HEADER} header. Each conversation has its own sandbox, so set "
                f"{THREAD_HEADER} to the conversation's id in the MCP client's settings."
            )
        request: Any = ctx.request_context.request
        principal: Principal = request.state.principal
        return await Sandboxes(self._client_of(principal)).arun(thread, _return_session)

    def forget(self) -> None:
        """Does nothing: the service knows each thread's session, and this object stores none."""


async def _return_session(session: AsyncSession) -> AsyncSession:
    return session
