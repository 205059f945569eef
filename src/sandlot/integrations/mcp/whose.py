"""Which sandbox a call is about."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from typing import Any, Final, Protocol

from mcp.server.mcpserver import Context

from sandlot.client.async_client import AsyncClient
from sandlot.client.async_session import AsyncSession
from sandlot.domain.errors import InvalidRequest, NotFound
from sandlot.integrations.sandboxes import Sandboxes

THREAD_HEADER: Final = "X-Thread-Id"


class Whose(Protocol):
    async def session(self, ctx: Context[Any, Any]) -> AsyncSession: ...

    def forget(self) -> None:
        """The next call may make a new session, if the one before has ended."""
        ...


class OneForTheProcess:
    """The sandbox of one thread, made by the first call; without a name, of a thread that nobody else knows.

    A session that has ended meanwhile is told of and replaced only when asked for: a client that stays open
    over night must not go on in an empty sandbox as if nothing had happened.
    """

    def __init__(
        self, client: AsyncClient, *, thread: str | None = None, environment: str | None = None
    ) -> None:
        self._client = client
        self._sandboxes = Sandboxes(client, environment=environment)
        self._keeps = thread is not None
        self._thread = f"mcp-{secrets.token_hex(12)}" if thread is None else thread
        self._opening = asyncio.Lock()
        self._id: str | None = None
        self._begun = False

    async def session(self, ctx: Context[Any, Any]) -> AsyncSession:
        async with self._opening:
            if self._id is None:
                session = await self._open()
                self._id = session.id
                return session
        return await self._client.get(self._id)

    def forget(self) -> None:
        self._id = None

    async def end(self) -> None:
        """Deletes the sandbox, unless it was given a name to come back to."""
        if self._keeps or not self._begun:
            return
        if self._id is None:
            # Asked for again rather than looked for: a create that is still under way is waited for.
            self._id = (await self._open()).id
        with contextlib.suppress(NotFound):  # it ended long ago
            await (await self._client.opened()).delete_session(self._id)

    async def _open(self) -> AsyncSession:
        self._begun = True
        return await self._sandboxes.arun(self._thread, _itself)


class ByHeader:
    """The thread that the request names.

    A server has one key, and no tenants: a thread belongs to whoever holds the key. Everybody else is refused
    by the edge with 401, before anything here sees the request.
    """

    def __init__(self, client: AsyncClient) -> None:
        self._sandboxes = Sandboxes(client)

    async def session(self, ctx: Context[Any, Any]) -> AsyncSession:
        thread = (ctx.headers or {}).get(THREAD_HEADER.lower(), "").strip()
        if not thread:
            # Never a default: two conversations without a name must not meet in one sandbox.
            raise InvalidRequest(
                f"no {THREAD_HEADER} header: a sandbox belongs to a conversation, so each request names its "
                f"own. Set the header {THREAD_HEADER} to the conversation's id in the MCP client's settings"
            )
        return await self._sandboxes.arun(thread, _itself)

    def forget(self) -> None:
        """Nothing is remembered: the service knows which session a thread has."""


async def _itself(session: AsyncSession) -> AsyncSession:
    return session
