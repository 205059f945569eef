"""``Sandboxes``: the sandbox of each conversation thread, for blocking code and for any event loop.

Frameworks call their tools from threads, from several loops in one process, and from both at once.
A ``Client`` runs all of these calls on its own single loop. An ``AsyncClient`` belongs to the
caller and runs on the caller's loop.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, Unpack

from sandlot.client.async_client import AsyncClient
from sandlot.client.async_session import AsyncSession
from sandlot.client.options import SessionOptions, check_session_options, thread_key
from sandlot.client.sync.client import Client
from sandlot.domain.errors import InvalidRequest

T = TypeVar("T")
Work = Callable[[AsyncSession], Coroutine[Any, Any, T]]


async def run_on_client(
    client: Client | AsyncClient, work: Callable[[AsyncClient], Coroutine[Any, Any, T]]
) -> T:
    """Run ``work`` with the client, on the loop that the client belongs to."""
    if isinstance(client, AsyncClient):
        return await work(client)
    return await asyncio.wrap_future(client.submit(work))


class Sandboxes:
    """Runs work in the sandbox of a thread.

    ``name`` gives each thread a separate sandbox, for a subagent that must not share its parent's.

    Nothing is created before the first call. Every call asks the service for the thread's session,
    because only the service knows which sandbox currently belongs to the thread.
    """

    def __init__(
        self,
        client: Client | AsyncClient | None = None,
        *,
        environment: str | None = None,
        name: str | None = None,
        **options: Unpack[SessionOptions],
    ) -> None:
        check_session_options("Sandboxes", options, ("client", "environment", "name"))
        if client is not None and not isinstance(client, Client | AsyncClient):
            raise InvalidRequest(f"client must be a sandlot.Client or AsyncClient, not {client!r:.80}.")
        if options.get("idempotency_key") is not None:
            raise InvalidRequest(
                "An idempotency_key names a single session, but each thread has its own. Leave it out."
            )
        self.client = client if client is not None else Client()
        self._environment = environment
        self.name = name
        self._options = options

    def thread_key(self, thread: str) -> str:
        """The thread's key in the service. Without a name, ``client.thread`` uses the same key."""
        if self.name is None:
            return thread_key(thread)
        # The hash tells apart thread "a/b" with name "c" and thread "a" with name "b/c".
        combined = f"{len(thread)}:{thread}/{self.name}".encode("utf-8", "replace")
        return thread_key(f"{thread}/{self.name}~{hashlib.sha256(combined).hexdigest()[:12]}")

    def blocking_client(self) -> Client:
        if not isinstance(self.client, Client):
            raise InvalidRequest(
                "invoke and stream need a sandlot.Client. With an AsyncClient, use ainvoke and astream."
            )
        return self.client

    def run(self, thread: str, work: Work[T], *, snapshot: str | None = None) -> T:
        """Run ``work`` with the thread's session, on the client's loop, and block until it ends.

        ``snapshot``: what the session begins with if there is none yet.
        """
        return self.blocking_client().call(lambda client: self._in_session(client, thread, work, snapshot))

    async def arun(self, thread: str, work: Work[T], *, snapshot: str | None = None) -> T:
        """Like ``run``, without blocking the calling loop."""
        return await run_on_client(
            self.client, lambda client: self._in_session(client, thread, work, snapshot)
        )

    async def _in_session(self, client: AsyncClient, thread: str, work: Work[T], snapshot: str | None) -> T:
        options = self._options
        if snapshot is not None:
            options = {**options, "snapshot": snapshot}
        return await work(await client.thread(self.thread_key(thread), self._environment, **options))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} environment={self._environment!r}, name={self.name!r}>"
