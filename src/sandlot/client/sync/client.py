"""``Client``: ``AsyncClient`` without await."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from typing import Any, Self, TypeVar

from sandlot.client.async_client import AsyncClient
from sandlot.client.options import PATIENCE_S
from sandlot.client.sync.background import BackgroundLoop
from sandlot.client.sync.blocking import Facade, blocking, blocking_as
from sandlot.client.sync.session import Session
from sandlot.domain.service import SandboxService

T = TypeVar("T")


class Client(Facade[AsyncClient]):
    """``url`` and ``api_key`` default to SANDLOT_URL and SANDLOT_API_KEY, then to a server on this machine.

    ``patience_s``: for so long ``create``, ``thread`` and ``run_in_thread`` wait for a server that heals by
    itself, as a fleet does whose directory was started again; 0: not at all.

    Its calls run on an event loop in a thread of its own, which ``close`` ends. A client that nobody closes
    is closed when the program ends.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        service: SandboxService | None = None,
        patience_s: float = PATIENCE_S,
        _behind: AsyncClient | None = None,
    ) -> None:
        behind = _behind or AsyncClient(url, api_key=api_key, service=service, patience_s=patience_s)
        super().__init__(behind, BackgroundLoop(behind.aclose))

    @classmethod
    def local(cls, **options: Any) -> Self:
        """A worker in this process, for this program alone; opened when it is first used."""
        return cls(_behind=AsyncClient.local(**options))

    @property
    def service(self) -> SandboxService:
        return self._behind.service

    create = blocking_as(Session, AsyncClient.create)
    thread = blocking_as(Session, AsyncClient.thread)
    run_in_thread = blocking(AsyncClient.run_in_thread)
    get = blocking_as(Session, AsyncClient.get)
    catalogue = blocking(AsyncClient.catalogue)
    health = blocking(AsyncClient.health)

    def sessions(self, *, thread: str | None = None) -> Iterator[Session]:
        """All that live or are lost, oldest first, page by page."""
        for session in self._loop.iterate(self._behind.sessions(thread=thread)):
            yield Session(session, self._loop)

    def submit(self, work: Callable[[AsyncClient], Coroutine[Any, Any, T]]) -> Future[T]:
        """Begins something with the async client behind this one, on its loop: the way in from others."""
        return self._loop.submit(work(self._behind))

    def call(self, work: Callable[[AsyncClient], Coroutine[Any, Any, T]]) -> T:
        """As ``submit``, and waits for it; an interrupt of the caller ends the work too.

        On the client's own loop, which would wait for itself, it is refused.
        """
        return self._loop.run(work(self._behind))

    def close(self) -> None:
        """Sessions live on; of a local client they end with its worker."""
        if self._loop.alive:
            try:
                if not self._loop.forked:  # a local worker and its sandboxes are the parent's
                    self._loop.run(self._behind.aclose())
            finally:
                self._loop.close()

    def __enter__(self) -> Self:
        self._loop.run(self._behind.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
