"""``AsyncClient``: where sessions come from. Written on the contract, so the service may be anywhere:
behind a URL, in this process (``AsyncClient.local()``), or a fake that a test brings along.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final, Self, Unpack

from sandlot.client.async_session import AsyncSession
from sandlot.client.extras import module_of_extra
from sandlot.client.keywords import check_keywords
from sandlot.client.opening import Opening
from sandlot.client.options import (
    PATIENCE_S,
    Command,
    ExecOptions,
    SessionOptions,
    create_request,
    exec_request,
    input_bytes,
    thread_key,
)
from sandlot.client.result import Result
from sandlot.config.client_settings import client_settings
from sandlot.domain.errors import InvalidRequest
from sandlot.domain.service import Catalogue, SandboxService, ServiceHealth
from sandlot.domain.session import CreateSession, IfDifferent

RUN_IN_THREAD_TAKES: Final = (
    "environment",
    "session_env",
    "recreate_lost",
    "if_different",
    "stdin",
    "check",
)


class AsyncClient:
    """``url`` and ``api_key`` default to SANDLOT_URL and SANDLOT_API_KEY, then to a server on this machine.

    ``patience_s``: for so long ``create``, ``thread`` and ``run_in_thread`` wait for a server that heals by
    itself, as a fleet does whose directory was started again; 0: not at all.

    A ``service`` that is given stays the caller's to close.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        service: SandboxService | None = None,
        patience_s: float = PATIENCE_S,
        _open: Callable[[], Awaitable[SandboxService]] | None = None,
    ) -> None:
        self._own = service is None
        self._open = _open
        if service is None and _open is None:
            from sandlot.client.http import HttpService

            settings = client_settings(url, api_key)
            service = HttpService(settings.url, settings.api_key, patience_s=patience_s)
        self._service = service
        self._opening = asyncio.Lock()

    @classmethod
    def local(cls, **options: Any) -> Self:
        """A worker in this process, for this program alone; opened when it is first used.

        Options are the server's settings by their names (docs/reference/settings.md), such as
        ``Client.local(pool_size=2)``. The sessions end with the program, those of threads too, unless it has
        ``keep_sessions=True``: the next local program then finds them again.
        """
        if options:
            settings = module_of_extra(
                "sandlot.config.settings", extra="server", who="a worker in this process"
            )
            check_keywords("local", options, {*settings.ServerSettings.model_fields, "keep_sessions"})

        async def open_service() -> SandboxService:
            # By name, since the wiring knows this package and must not be known by it.
            wiring = module_of_extra("sandlot.wiring", extra="server", who="a worker in this process")
            service: SandboxService = await wiring.local_service(**options)
            return service

        return cls(_open=open_service)

    @property
    def service(self) -> SandboxService:
        if self._service is None:
            raise InvalidRequest("a local client is opened by `async with`, or by its first call")
        return self._service

    async def opened(self) -> SandboxService:
        """The service; a local one is started by the first who asks."""
        if self._service is None:
            async with self._opening:
                if self._service is None:
                    if self._open is None:
                        raise InvalidRequest("this client is closed")
                    self._service = await self._open()
        return self._service

    def create(
        self,
        environment: str | None = None,
        *,
        thread: str | None = None,
        **options: Unpack[SessionOptions],
    ) -> Opening:
        """A new session; with a thread, the one that the thread has already. Options: ``SessionOptions``.

        ``async with client.create() as session`` deletes the session at the end, but not that of a thread.
        """
        return Opening(self._create(create_request("create", environment, thread, options)))

    def thread(
        self, thread: str, environment: str | None = None, **options: Unpack[SessionOptions]
    ) -> Opening:
        """The session of a conversation, made if it has none; however many ask at once, there is one.

        ``ThreadDiffers`` if it has one with another environment, variables or limits than are given here;
        with ``if_different="keep"`` that one is used as it is. ``async with`` leaves it to the next call of
        the conversation: ``session.delete()`` ends it.
        """
        return Opening(self._create(create_request("thread", environment, thread, options)))

    async def _create(self, request: CreateSession) -> AsyncSession:
        service = await self.opened()
        opened = await service.create_session(request)
        # A thread's session is the conversation's, whoever of its calls happens to have made it.
        owned = request.thread is None
        return AsyncSession(self, service, opened.session, opened.created, owned=owned)

    async def run_in_thread(
        self,
        thread: str,
        command: Command,
        *,
        environment: str | None = None,
        session_env: Mapping[str, str] | None = None,
        recreate_lost: bool = False,
        if_different: IfDifferent = "error",
        stdin: bytes | str | None = None,
        check: bool = False,
        **options: Unpack[ExecOptions],
    ) -> Result:
        """``thread`` and ``run`` in one round trip. ``session_env``: as ``env`` of ``thread``."""
        request = exec_request("run_in_thread", command, options, takes=RUN_IN_THREAD_TAKES)
        session: SessionOptions = {
            "env": session_env or {},
            "recreate_lost": recreate_lost,
            "if_different": if_different,
        }
        create = create_request("run_in_thread", environment, thread, session)
        service = await self.opened()
        run = await service.execute_in_thread(create, request, input_bytes(stdin))
        result = Result(run.result)
        return result.check() if check else result

    async def get(self, session_id: str) -> AsyncSession:
        service = await self.opened()
        return AsyncSession(self, service, await service.get_session(session_id))

    async def sessions(self, *, thread: str | None = None) -> AsyncIterator[AsyncSession]:
        """All that live or are lost, oldest first, page by page."""
        service = await self.opened()
        after: str | None = None
        key = None if thread is None else thread_key(thread)
        while True:
            page = await service.list_sessions(thread=key, after=after)
            for session in page.sessions:
                yield AsyncSession(self, service, session)
            if page.next is None:
                return
            after = page.next

    async def catalogue(self) -> Catalogue:
        """The environments, tools, prompts and agents that the server offers."""
        return await (await self.opened()).catalogue()

    async def health(self) -> ServiceHealth:
        return await (await self.opened()).health()

    async def aclose(self) -> None:
        """Sessions live on; of a local client they end with its worker."""
        self._open = None
        own, self._own = self._own, False  # closed once
        if own and self._service is not None:
            await self._service.close()

    def __repr__(self) -> str:
        where = getattr(self._service, "url", None) or (
            "not opened yet" if self._service is None else "local"
        )
        return f"<{type(self).__name__} {where}>"

    async def __aenter__(self) -> Self:
        await self.opened()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
