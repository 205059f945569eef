"""``AsyncClient``: creates and finds sessions.

It uses only the ``SandboxService`` contract, so the service can be anywhere: behind a URL, in this
process (``AsyncClient.local()``), or a fake that a test supplies.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Self, Unpack

from sandlot.client.artifacts.async_artifacts import AsyncArtifacts
from sandlot.client.async_session import AsyncSession
from sandlot.client.events import event_query, iterate_events
from sandlot.client.extras import import_extra
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
from sandlot.client.volumes.async_volumes import AsyncVolumes
from sandlot.client.workspaces.async_workspace import SnapshotOrId, iterate_snapshots, snapshot_id
from sandlot.config.client_settings import client_settings
from sandlot.domain.errors import InvalidRequest
from sandlot.domain.history.events import Event
from sandlot.domain.service import Catalogue, SandboxService, ServiceHealth
from sandlot.domain.session import CreateSession, IfDifferent
from sandlot.domain.workspaces.snapshots import Snapshot

RUN_IN_THREAD_ARGUMENTS: Final = (
    "environment",
    "session_env",
    "recreate_lost",
    "if_different",
    "stdin",
    "check",
)


class AsyncClient:
    """A connection to a Sandlot server, for asyncio programs.

    Start here: ``create`` returns a new sandbox session, ``thread`` that of a conversation.

    ``url`` and ``api_key``: the server and its key. They default to the environment variables
    SANDLOT_URL and SANDLOT_API_KEY, then to a server on this machine.

    ``patience_s``: how many seconds ``create``, ``thread`` and ``run_in_thread`` wait for a server
    that recovers by itself, such as a fleet whose directory was restarted; 0 means no waiting.

    ``service``: use this service instead of a URL. The caller closes it, not the client.

    ``artifacts``: the files that your sessions have kept. ``volumes``: your volumes, which sessions share.
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
        self._owns_service = service is None
        self._open = _open
        if service is None and _open is None:
            from sandlot.client.http import HttpService

            settings = client_settings(url, api_key)
            service = HttpService(settings.url, settings.api_key, patience_s=patience_s)
        self._service = service
        self._open_lock = asyncio.Lock()
        self.artifacts = AsyncArtifacts(self)
        self.volumes = AsyncVolumes(self)

    @classmethod
    def local(cls, **options: Any) -> Self:
        """Run a worker inside this process, for this program alone, instead of using a server.

        The worker starts when the client is first used. Options are the server's settings by name
        (docs/reference/settings.md), such as ``Client.local(pool_size=2)``. Sessions that the
        program created end with it, including those of threads. With ``keep_sessions=True`` they
        stay, and the next local program finds them again.
        """
        if options:
            settings = import_extra(
                "sandlot.config.settings", extra="server", needed_by="a worker in this process"
            )
            check_keywords("local", options, {*settings.ServerSettings.model_fields, "keep_sessions"})

        async def open_service() -> SandboxService:
            # Imported by name: the wiring imports this package, so this package must not import it.
            wiring = import_extra("sandlot.wiring", extra="server", needed_by="a worker in this process")
            service: SandboxService = await wiring.local_service(**options)
            return service

        return cls(_open=open_service)

    @property
    def service(self) -> SandboxService:
        """The service behind this client. A local client has none until it is opened."""
        if self._service is None:
            raise InvalidRequest(
                "This local client is not open yet. Use it in `async with`, or make a call first."
            )
        return self._service

    async def opened(self) -> SandboxService:
        """Return the service; the first call starts a local one."""
        if self._service is None:
            async with self._open_lock:
                if self._service is None:
                    if self._open is None:
                        raise InvalidRequest("This client is closed. Create a new one.")
                    self._service = await self._open()
        return self._service

    def create(
        self,
        environment: str | None = None,
        *,
        thread: str | None = None,
        **options: Unpack[SessionOptions],
    ) -> Opening:
        """Create a session with a sandbox of its own. For the options, see ``SessionOptions``.

        With a ``thread`` that already has a session, return that session instead.

        ``async with client.create() as session`` deletes the session at the end. It does not delete
        the session of a thread.
        """
        return Opening(self._create(create_request("create", environment, thread, options)))

    def thread(
        self, thread: str, environment: str | None = None, **options: Unpack[SessionOptions]
    ) -> Opening:
        """Return the session of a conversation, and create it if there is none.

        However many callers ask at the same moment, the thread gets one session.

        Raises ``ThreadDiffers`` if the thread has a session with another environment, variables, volumes
        or limits than those given here. With ``if_different="keep"`` you get that session as it is.

        ``async with`` keeps the session for the next call; ``session.delete()`` ends it.
        """
        return Opening(self._create(create_request("thread", environment, thread, options)))

    async def _create(self, request: CreateSession) -> AsyncSession:
        service = await self.opened()
        opened = await service.create_session(request)
        # A thread's session belongs to the conversation, even if this call created it.
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
        """Run a command in the session of a conversation: ``thread`` and ``run`` in one round trip.

        ``session_env`` is the ``env`` of ``thread``: variables for every command of the session.
        The other options are those of ``run``.
        """
        request = exec_request("run_in_thread", command, options, accepts=RUN_IN_THREAD_ARGUMENTS)
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
        """Return the session with this id."""
        service = await self.opened()
        return AsyncSession(self, service, await service.get_session(session_id))

    async def sessions(self, *, thread: str | None = None) -> AsyncIterator[AsyncSession]:
        """Iterate over all active and lost sessions, oldest first; pages are fetched as needed.

        ``thread`` limits this to the session of one conversation.
        """
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

    async def snapshots(self, session: str | None = None) -> AsyncGenerator[Snapshot, None]:
        """Iterate over your snapshots, oldest first; pages are fetched as needed.

        ``session``: only those of this session's id, which may have ended.
        """
        async for snapshot in iterate_snapshots(await self.opened(), session):
            yield snapshot

    async def delete_snapshot(self, snapshot: SnapshotOrId) -> None:
        """Delete a snapshot. Sessions that began from it keep their files. Deleting twice is no error."""
        await (await self.opened()).delete_snapshot(snapshot_id(snapshot))

    async def events(
        self,
        *,
        session: str | None = None,
        thread: str | None = None,
        kinds: Sequence[str] = (),
        since: float | None = None,
        until: float | None = None,
        server: bool = False,
        follow: bool = False,
        partial: bool = False,
    ) -> AsyncGenerator[Event, None]:
        """Iterate over what happened, oldest first: all events of your tenant, or those that match.

        ``session``: only those of this session's id, which may have ended. ``thread``: only those of this
        conversation's sessions. ``server``: the events that belong to no tenant, for operators. The other
        options are those of ``AsyncSession.history``.
        """
        query = event_query(
            session=session,
            thread=None if thread is None else thread_key(thread),
            kinds=kinds,
            since=since,
            until=until,
            server=server,
        )
        events = iterate_events(await self.opened(), query, follow=follow, partial=partial)
        async with contextlib.aclosing(events):
            async for event in events:
                yield event

    async def recording(self, session: str) -> AsyncGenerator[bytes, None]:
        """Iterate over the recording of this session's id, which may have ended. See ``AsyncSession``."""
        async for piece in (await self.opened()).read_recording(session):
            yield piece

    async def catalogue(self) -> Catalogue:
        """Return the environments, tools, prompts and agents that the server offers."""
        return await (await self.opened()).catalogue()

    async def health(self) -> ServiceHealth:
        """Return whether the server can be used, and what is wrong if it cannot."""
        return await (await self.opened()).health()

    async def aclose(self) -> None:
        """Close the client. Sessions stay; those of a local client end with its worker."""
        self._open = None
        owns_service, self._owns_service = self._owns_service, False  # close the service only once
        if owns_service and self._service is not None:
            await self._service.close()

    def __repr__(self) -> str:
        location = getattr(self._service, "url", None) or (
            "not opened yet" if self._service is None else "local"
        )
        return f"<{type(self).__name__} {location}>"

    async def __aenter__(self) -> Self:
        await self.opened()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
