"""``Client``: ``AsyncClient`` without await."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from functools import cached_property
from typing import Any, Self, TypeVar

from sandlot.client.async_client import AsyncClient
from sandlot.client.options import PATIENCE_S
from sandlot.client.sync.artifacts import Artifacts
from sandlot.client.sync.background import BackgroundLoop
from sandlot.client.sync.blocking import Facade, blocking, blocking_as, iterating
from sandlot.client.sync.session import Session
from sandlot.client.sync.volumes import Volumes
from sandlot.domain.service import SandboxService

T = TypeVar("T")


class Client(Facade[AsyncClient]):
    """A connection to a Sandlot server, for programs without asyncio.

    Start here: ``create`` returns a new sandbox session, ``thread`` that of a conversation.

    ``url`` and ``api_key``: the server and its key. They default to the environment variables
    SANDLOT_URL and SANDLOT_API_KEY, then to a server on this machine.

    ``patience_s``: how many seconds ``create``, ``thread`` and ``run_in_thread`` wait for a server
    that recovers by itself, such as a fleet whose directory was restarted; 0 means no waiting.

    ``service``: use this service instead of a URL. The caller closes it, not the client.

    Calls run on an event loop in a background thread, which ``close`` stops. A client that you do
    not close is closed when the program ends.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        service: SandboxService | None = None,
        patience_s: float = PATIENCE_S,
        _wrapped: AsyncClient | None = None,
    ) -> None:
        wrapped = _wrapped or AsyncClient(url, api_key=api_key, service=service, patience_s=patience_s)
        super().__init__(wrapped, BackgroundLoop(wrapped.aclose))

    @classmethod
    def local(cls, **options: Any) -> Self:
        """Run a worker inside this process, for this program alone, instead of using a server.

        The worker starts when the client is first used. Options are the server's settings by name
        (docs/reference/settings.md), such as ``Client.local(pool_size=2)``. The sessions that the
        program created end with it, including those of threads. With ``keep_sessions=True`` they
        stay, and the next local program finds them again.
        """
        return cls(_wrapped=AsyncClient.local(**options))

    @cached_property
    def artifacts(self) -> Artifacts:
        """The files that your sessions have kept."""
        return Artifacts(self._wrapped.artifacts, self._loop)

    @cached_property
    def volumes(self) -> Volumes:
        """Your volumes, which sessions share."""
        return Volumes(self._wrapped.volumes, self._loop)

    @property
    def service(self) -> SandboxService:
        """The service behind this client. A local client has none until it is opened."""
        return self._wrapped.service

    create = blocking_as(Session, AsyncClient.create)
    thread = blocking_as(Session, AsyncClient.thread)
    run_in_thread = blocking(AsyncClient.run_in_thread)
    get = blocking_as(Session, AsyncClient.get)
    snapshots = iterating(AsyncClient.snapshots)
    delete_snapshot = blocking(AsyncClient.delete_snapshot)
    events = iterating(AsyncClient.events)
    recording = iterating(AsyncClient.recording)
    catalogue = blocking(AsyncClient.catalogue)
    health = blocking(AsyncClient.health)

    def sessions(self, *, thread: str | None = None) -> Iterator[Session]:
        """Iterate over all active and lost sessions, oldest first; pages are fetched as needed.

        ``thread`` limits this to the session of one conversation.
        """
        for session in self._loop.iterate(self._wrapped.sessions(thread=thread)):
            yield Session(session, self._loop)

    def submit(self, work: Callable[[AsyncClient], Coroutine[Any, Any, T]]) -> Future[T]:
        """Start async work on the client's background loop, from any thread or event loop.

        ``work`` receives the ``AsyncClient`` behind this client.
        """
        return self._loop.submit(work(self._wrapped))

    def call(self, work: Callable[[AsyncClient], Coroutine[Any, Any, T]]) -> T:
        """Run async work like ``submit`` and wait for its result.

        Interrupting the caller cancels the work. On the client's own loop this raises an error,
        because the loop would wait for itself.
        """
        return self._loop.run(work(self._wrapped))

    def close(self) -> None:
        """Close the client. Sessions stay; those of a local client end with its worker."""
        if self._loop.alive:
            try:
                if not self._loop.forked:  # after a fork, a local worker belongs to the parent
                    self._loop.run(self._wrapped.aclose())
            finally:
                self._loop.close()

    def __enter__(self) -> Self:
        self._loop.run(self._wrapped.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
