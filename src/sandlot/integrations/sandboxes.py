"""``Sandboxes``: the sandbox of each conversation thread, reached from plain code and from any event loop.

Frameworks call their tools from threads, from several loops in one process, and from both at once. With a
``Client`` all of that comes together on the one loop that the client has. An ``AsyncClient`` is the caller's
own and is used on the caller's loop.
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


async def on_client(client: Client | AsyncClient, work: Callable[[AsyncClient], Coroutine[Any, Any, T]]) -> T:
    """Awaits work with a client, on the loop that the client belongs to."""
    if isinstance(client, AsyncClient):
        return await work(client)
    return await asyncio.wrap_future(client.submit(work))


class Sandboxes:
    """``name``: sandboxes of their own within each thread, for a subagent that is not to share its parent's.

    Nothing is created before the first call, and the thread is asked for at each call: which sandbox belongs
    to it is the service's to know, not ours to remember.
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
            raise InvalidRequest(f"client is a sandlot.Client or AsyncClient, not {client!r:.80}")
        if options.get("idempotency_key") is not None:
            raise InvalidRequest("an idempotency_key names one session, and each thread has its own")
        self.client = client if client is not None else Client()
        self._environment = environment
        self._name = name
        self._options = options

    def thread_key(self, thread: str) -> str:
        """What the service knows the thread by: as ``client.thread`` has it, where there is no name."""
        if self._name is None:
            return thread_key(thread)
        # The end keeps apart what only looks the same: thread "a/b" with name "c", and "a" with "b/c".
        both = f"{len(thread)}:{thread}/{self._name}".encode("utf-8", "replace")
        return thread_key(f"{thread}/{self._name}~{hashlib.sha256(both).hexdigest()[:12]}")

    def blocking_client(self) -> Client:
        if not isinstance(self.client, Client):
            raise InvalidRequest(
                "a blocking call needs a sandlot.Client; with an AsyncClient use ainvoke and astream"
            )
        return self.client

    def run(self, thread: str, work: Work[T]) -> T:
        """Blocks. The work runs with the thread's session, on the client's loop."""
        return self.blocking_client().call(lambda client: self._in_session(client, thread, work))

    async def arun(self, thread: str, work: Work[T]) -> T:
        """As ``run``, without blocking the loop that it is called on."""
        return await on_client(self.client, lambda client: self._in_session(client, thread, work))

    async def _in_session(self, client: AsyncClient, thread: str, work: Work[T]) -> T:
        return await work(await client.thread(self.thread_key(thread), self._environment, **self._options))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} environment={self._environment!r}, name={self._name!r}>"
