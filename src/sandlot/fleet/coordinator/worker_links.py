"""Links from a coordinator to its workers: one SDK ``HttpService`` for each caller on each worker.

All callers of a worker share its connections. A token names the caller, so that the worker itself knows
whose sessions it may touch.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial
from typing import Final

import msgspec

from sandlot.client.http import HttpService
from sandlot.client.http.paths import events_path
from sandlot.client.http.streams.event_streams import EventStream
from sandlot.client.http.streams.execution import Dial
from sandlot.client.http.transport.connection import Connection
from sandlot.client.http.transport.errors import is_transport_failure
from sandlot.client.http.transport.request import encode, query, segment
from sandlot.domain.artifacts.artifact import ArtifactPage
from sandlot.domain.callers.principal import MEMBER, Principal
from sandlot.domain.capacity.budget import ByteBudget
from sandlot.domain.environment import Reload, ServerReload
from sandlot.domain.errors import (
    Conflict,
    InvalidRequest,
    LinkInterrupted,
    NotFound,
    SandlotError,
    Unauthorized,
    Unavailable,
    Unsupported,
)
from sandlot.domain.history.query import EventPage, EventQuery
from sandlot.domain.service import Opened
from sandlot.domain.session import Assignment, CreateSession, Session
from sandlot.domain.workspaces.snapshots import SnapshotPage
from sandlot.fleet.access import KEY_ENDED
from sandlot.fleet.coordinator.create_sender import CONNECT_TIMEOUT_S, Sender
from sandlot.fleet.directory.contract import WorkerRef
from sandlot.wire.fleet_bodies import EMPTY_BODY, AssignedCreateBody
from sandlot.wire.tracing.request_id import current_request_id
from sandlot.wire.webhook_bodies import DeadLetterPageBody, RedeliverBody, WebhookBody, WebhookListBody

# Together with CONNECT_TIMEOUT_S shorter than the time for which a client waits for new access.
GET_READ_S: Final = 2.5
PROBE_S: Final = 1.5
# During a long call, probe the worker this often. The call fails after this many consecutive
# failures.
WATCH_EVERY_S: Final = 3.0
MAX_FAILED_PROBES: Final = 2
# Links to keep open. A fleet has a few hundred workers, but a worker that moves leaves an old link.
MAX_LINKS: Final = 4096

# The budget for large responses that are being read. A result has up to 32 MiB, or 200 MiB from a
# worker that only speaks JSON.
LARGE_BYTES_AT_ONCE: Final = 80 * 1024 * 1024

# Callers of one worker whose links are kept.
MAX_CALLERS: Final = 1024

_EVENTS: Final = msgspec.json.Decoder(EventPage)
_SNAPSHOTS: Final = msgspec.json.Decoder(SnapshotPage)
_ARTIFACTS: Final = msgspec.json.Decoder(ArtifactPage)
_WEBHOOKS: Final = msgspec.json.Decoder(WebhookListBody)
_DEAD_LETTERS: Final = msgspec.json.Decoder(DeadLetterPageBody)
_REDELIVER: Final = msgspec.json.Decoder(RedeliverBody)
_RELOAD: Final = msgspec.json.Decoder(Reload)

SessionCheck = Callable[[str], Awaitable[object]]
TenantSessionCheck = Callable[[str, str], Awaitable[object]]
MemberToken = Callable[[str, Principal], str]


class WorkerLink(HttpService):
    """An ``HttpService`` for one worker, with the calls that only fleet members may make.

    ``check_session`` raises if it makes no sense to wait for the session's worker.
    """

    def __init__(
        self, connection: Connection, sender: Sender, check_session: SessionCheck | None = None
    ) -> None:
        # No retries here: the client retries, and would otherwise wait twice.
        super().__init__(
            connection.url, direct=False, connection=connection, max_outage_s=0.0, patience_s=0.0
        )
        self._sender = sender
        self._check_session = check_session

    def acting_for(self, token: Callable[[], str], check_session: SessionCheck | None) -> WorkerLink:
        """A link for one caller, on the same connections."""
        return WorkerLink(self._connection.with_key(token), self._sender, check_session)

    def _redial(self, session_id: str, attach: Dial) -> Dial:
        if self._check_session is None:
            return attach
        check_session = self._check_session

        async def redial(offset: int) -> EventStream:
            await check_session(session_id)
            return await attach(offset)

        return redial

    async def get_session(self, session_id: str) -> Session:
        """Try once, with a short timeout. The directory knows the session too if this fails."""
        path = f"/v1/sessions/{segment(session_id)}"
        _, body = await self._connection.call_once("GET", path, read_timeout_s=GET_READ_S)
        return self._session(body)

    async def list_events(self, query: EventQuery) -> EventPage:
        """Try once: a page names the workers that did not answer."""
        try:
            _, body = await self._connection.call_once("GET", events_path(query), read_timeout_s=GET_READ_S)
        except NotFound as error:
            raise Unsupported("This worker runs an older version of Sandlot, without a history.") from error
        page: EventPage = self._connection.decode(_EVENTS, body)
        return page

    async def list_snapshots(
        self, *, session_id: str | None = None, after: str | None = None, limit: int = 100
    ) -> SnapshotPage:
        """Try once: a page names the workers that did not answer."""
        path = "/v1/snapshots" + query(session=session_id, after=after, limit=limit)
        try:
            _, body = await self._connection.call_once("GET", path, read_timeout_s=GET_READ_S)
        except NotFound:
            return SnapshotPage(())  # the worker runs an older version, which has no snapshots
        page: SnapshotPage = self._connection.decode(_SNAPSHOTS, body)
        return page

    async def list_saved_artifacts(
        self,
        *,
        session_id: str | None,
        thread: str | None,
        after: str | None,
        limit: int,
        without: Sequence[str],
    ) -> ArtifactPage:
        """What is in object storage, except of the workers with the tags ``without``. Tries once."""
        path = "/v1/fleet/artifacts" + query(
            session=session_id, thread=thread, after=after, limit=limit, without=",".join(without)
        )
        try:
            _, body = await self._connection.call_once("GET", path, read_timeout_s=GET_READ_S)
        except NotFound as error:
            raise Unsupported("This worker runs an older version of Sandlot.") from error
        page: ArtifactPage = self._connection.decode(_ARTIFACTS, body)
        return page

    async def list_webhooks(self) -> list[WebhookBody]:
        """How the worker is doing with the webhooks of the caller's tenant. Tries once."""
        _, body = await self._connection.call_once("GET", "/v1/webhooks", read_timeout_s=GET_READ_S)
        found: WebhookListBody = self._connection.decode(_WEBHOOKS, body)
        return found.webhooks

    async def list_dead_letters(self, webhook_id: str, after: str | None, limit: int) -> DeadLetterPageBody:
        """Those that this worker has. Tries once."""
        path = f"/v1/webhooks/{segment(webhook_id)}/dead-letters" + query(after=after, limit=limit)
        try:
            _, body = await self._connection.call_once("GET", path, read_timeout_s=GET_READ_S)
        except NotFound:
            return DeadLetterPageBody([])  # the worker does not know the webhook yet
        page: DeadLetterPageBody = self._connection.decode(_DEAD_LETTERS, body)
        return page

    async def redeliver(self, webhook_id: str) -> int:
        """Have the worker try its dead letters again. Returns how many it has. Tries once."""
        path = f"/v1/webhooks/{segment(webhook_id)}/dead-letters/redeliver"
        try:
            _, body = await self._connection.call_once("POST", path, EMPTY_BODY, read_timeout_s=GET_READ_S)
        except (NotFound, Conflict):
            return 0  # the worker does not know it yet, or its receiver is gone
        started: RedeliverBody = self._connection.decode(_REDELIVER, body)
        return started.redelivering

    async def create_assigned(self, request: CreateSession, assignment: Assignment) -> Opened:
        """Create a session in the place that the directory assigned.

        The request needs an idempotency key, so that sending it twice makes one session.
        """
        assert request.idempotency_key is not None
        body = encode(AssignedCreateBody.of(request, assignment).to_wire())
        status, response = await self._sender.post(
            "/v1/fleet/sessions", body, self._connection.identity_headers, self._connection.tls()
        )
        return Opened(self._session(response), created=status == 201)

    async def set_draining(self, draining: bool) -> None:
        path = "/v1/fleet/drain" if draining else "/v1/fleet/undrain"
        try:
            await self._connection.call("POST", path, EMPTY_BODY, repeatable=True)
        except NotFound as error:
            raise Unsupported(
                "This worker runs an older version of Sandlot, which does not support this command. "
                "Update it. If it is draining, a restart makes it accept sessions again."
            ) from error

    async def reload_environments(self) -> ServerReload:
        """Have the worker read its registry again. Tries once."""
        try:
            _, body = await self._connection.call_once(
                "POST", "/v1/environments/reload", EMPTY_BODY, read_timeout_s=GET_READ_S
            )
        except NotFound as error:
            raise Unsupported(
                "This worker runs an older version of Sandlot, which reads its registry only when it starts."
            ) from error
        reload: Reload = self._connection.decode(_RELOAD, body)
        return reload.servers[0]

    async def close(self) -> None:
        await self._sender.close()
        await super().close()

    async def answers(self) -> bool:
        """Whether the worker answers a health check within ``PROBE_S``.

        A connection alone proves nothing: the kernel accepts connections for a frozen process too.
        """
        try:
            await self._connection.call_once("GET", "/health", read_timeout_s=PROBE_S)
        except SandlotError:
            return False
        return True


@asynccontextmanager
async def watched(link: WorkerLink, within_s: float | None = None) -> AsyncIterator[None]:
    """Bound a long call: it fails once the worker stops answering probes, or after ``within_s``.

    A frozen worker, or a machine without power, stays silent and breaks no connection. ``within_s``
    is longer than any call takes on a worker that keeps its own deadlines.
    """
    limit = asyncio.timeout(within_s)
    watching: list[asyncio.Task[None]] = []
    # Start the task late: most calls end long before.
    first_probe = asyncio.get_running_loop().call_later(
        WATCH_EVERY_S, lambda: watching.append(asyncio.create_task(_watch(link, limit)))
    )
    try:
        async with limit:
            yield
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise LinkInterrupted("The worker did not answer in time. Retry.", retry_after_s=1.0) from error
    finally:
        first_probe.cancel()
        for task in watching:
            task.cancel()


def unwatched(link: WorkerLink, within_s: float | None = None) -> AbstractAsyncContextManager[None]:
    return nullcontext()


async def _watch(link: WorkerLink, limit: asyncio.Timeout) -> None:
    failed = 0
    while True:
        failed = 0 if await link.answers() else failed + 1
        if failed == MAX_FAILED_PROBES:
            break
        await asyncio.sleep(WATCH_EVERY_S)
    limit.reschedule(asyncio.get_running_loop().time())


Watch = Callable[[WorkerLink, float | None], AbstractAsyncContextManager[None]]


def as_client_error(worker_id: str, error: SandlotError) -> SandlotError:
    """Return the error for the coordinator's client when a call to a worker failed.

    Failures between coordinator and worker become ``Unavailable`` or ``LinkInterrupted`` errors
    that name the worker. The client cannot fix them and should retry. Other errors pass unchanged.
    """
    details = {"reason": "worker_unreachable", "worker_id": worker_id}
    if isinstance(error, Unauthorized) and error.details.get("reason") == KEY_ENDED:
        return error  # the worker has heard of it before this coordinator
    if isinstance(error, Unauthorized):
        # The token expired while the request waited, or keys or clocks differ. The worker did
        # nothing.
        return Unavailable(
            f"Worker {worker_id} rejected this coordinator's token "
            f"({error.message.removesuffix('.')}). Retry. If it persists, compare the keys (`sandlot fleet "
            "status`) and the clocks of both.",
            retry_after_s=1.0,
            details=details,
        )
    if not is_transport_failure(error):
        return error
    kind = LinkInterrupted if isinstance(error, LinkInterrupted) else Unavailable
    return kind(
        f"This coordinator cannot reach worker {worker_id}. Retry.",
        retry_after_s=1.0,
        may_have_executed=error.may_have_executed,
        details=details,
    )


class WorkerLinks:
    """The open links, by worker id and URL, and by caller.

    ``token`` returns a member token for a worker id and a caller. ``check_session`` runs before a reader
    attaches to an exec again. It raises if it makes no sense to wait for the session's worker.
    """

    def __init__(self, token: MemberToken, check_session: TenantSessionCheck | None = None) -> None:
        self._token = token
        self._check_session = check_session
        self._links: dict[tuple[str, str], dict[Principal, WorkerLink]] = {}
        self._large_answers = ByteBudget(LARGE_BYTES_AT_ONCE)

    async def to(self, worker: WorkerRef, principal: Principal = MEMBER) -> WorkerLink:
        """``principal``: the caller. Without one, the link is for calls of the fleet itself."""
        key = (worker.id, worker.url)
        links = self._links.get(key)
        if links is None:
            if len(self._links) >= MAX_LINKS:
                await self._close(self._links.pop(next(iter(self._links))))
            links = self._links[key] = {MEMBER: self._open(worker)}
        link = links.get(principal)
        if link is None:
            if len(links) >= MAX_CALLERS:
                await links.pop(next(caller for caller in links if caller is not MEMBER)).release()
            check = None if self._check_session is None else partial(self._check_session, principal.tenant)
            link = links[MEMBER].acting_for(partial(self._token, worker.id, principal), check)
            links[principal] = link
        return link

    def _open(self, worker: WorkerRef) -> WorkerLink:
        try:
            # No proxy: only this worker may see the token and the contents of a create.
            connection = Connection(
                worker.url,
                partial(self._token, worker.id, MEMBER),
                connect_timeout_s=CONNECT_TIMEOUT_S,
                proxy=False,
                request_id=current_request_id.get,
                large_answers=self._large_answers,
            )
        except InvalidRequest as error:
            raise Unavailable(
                f"Worker {worker.id} advertises an address that cannot be used: {error.message} Correct its "
                "SANDLOT_ADVERTISE_URL.",
                details={"reason": "worker_unreachable", "worker_id": worker.id},
            ) from error
        return WorkerLink(connection, Sender(connection.url))

    async def _close(self, links: dict[Principal, WorkerLink]) -> None:
        for principal, link in links.items():
            if principal is not MEMBER:
                await link.release()
        await links[MEMBER].close()

    async def close(self) -> None:
        links, self._links = list(self._links.values()), {}
        for of_worker in links:
            await self._close(of_worker)
