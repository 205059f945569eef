"""The way from a coordinator to its workers: the client's own HTTP implementation, one for each address."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial
from typing import Final

from sandlot.client.http import HttpService
from sandlot.client.http.connection import Connection
from sandlot.client.http.execution import Dial
from sandlot.client.http.lines import Line
from sandlot.client.http.problems import is_of_the_way
from sandlot.client.http.request import encode, segment
from sandlot.domain.budget import ByteBudget
from sandlot.domain.errors import (
    InvalidRequest,
    LinkInterrupted,
    NotFound,
    SandlotError,
    Unauthorized,
    Unavailable,
    Unsupported,
)
from sandlot.domain.service import Opened
from sandlot.domain.session import Assignment, CreateSession, Session
from sandlot.fleet.directory import WorkerAt
from sandlot.fleet.sending import CONNECT_S, Sender
from sandlot.wire.fleet_bodies import AssignedCreateBody, DrainBody
from sandlot.wire.request_id import served_request

# Together with CONNECT_S less than a client waits for new access.
GET_READ_S: Final = 2.5
PROBE_S: Final = 1.5
# A call that lasts is accompanied by the question whether anybody is there; so often unanswered, it is over.
WATCH_EVERY_S: Final = 3.0
SILENT_TIMES: Final = 2
# Addresses that are kept open. A cell has some hundred workers; one that moves leaves its old one behind.
MAX_LINKS: Final = 4096

# Of large answers that are being read; a result has up to 32 MiB, from workers that know JSON alone 200.
LARGE_BYTES_AT_ONCE: Final = 80 * 1024 * 1024

Look = Callable[[str], Awaitable[object]]


class WorkerLink(HttpService):
    """``HttpService`` to a worker, and what only members of a fleet may ask."""

    def __init__(
        self,
        url: str,
        token: Callable[[], str],
        look: Look | None = None,
        large: ByteBudget | None = None,
    ) -> None:
        # No proxy: the token, and what a create carries, are for this worker alone.
        connection = Connection(
            url,
            token,
            connect_timeout_s=CONNECT_S,
            proxy=False,
            request_id=served_request.get,
            large=large,
        )
        # Whoever asked is patient; to be so here as well would make them wait twice.
        super().__init__(url, direct=False, connection=connection, away_s=0.0, patience_s=0.0)
        self._sender = Sender(self.url)
        self._look = look

    def _redial(self, session_id: str, attach: Dial) -> Dial:
        if self._look is None:
            return attach
        look = self._look

        async def redial(offset: int) -> Line:
            await look(session_id)
            return await attach(offset)

        return redial

    async def get_session(self, session_id: str) -> Session:
        """Once, and not for long: where a worker cannot be reached, the directory knows the session too."""
        path = f"/v1/sessions/{segment(session_id)}"
        _, body = await self._connection.call_once("GET", path, read_timeout_s=GET_READ_S)
        return self._session(body)

    async def create_assigned(self, request: CreateSession, assignment: Assignment) -> Opened:
        """The request has an idempotency key: sent twice, it makes one session."""
        assert request.idempotency_key is not None
        body = encode(AssignedCreateBody.of(request, assignment).sent())
        status, answer = await self._sender.post(
            "/v1/fleet/sessions", body, self._connection.own_headers, self._connection.tls()
        )
        return Opened(self._session(answer), created=status == 201)

    async def set_draining(self, draining: bool) -> None:
        path = "/v1/fleet/drain" if draining else "/v1/fleet/undrain"
        try:
            await self._connection.call("POST", path, encode(DrainBody()), repeatable=True)
        except NotFound as error:
            raise Unsupported(
                "this worker is of an earlier version, which takes sessions again once it is restarted"
            ) from error

    async def close(self) -> None:
        self._sender.close()
        await super().close()

    async def answers(self) -> bool:
        """Whether anybody is there, at once or not at all: a frozen process accepts connections too."""
        try:
            await self._connection.call_once("GET", "/health", read_timeout_s=PROBE_S)
        except SandlotError:
            return False
        return True


@asynccontextmanager
async def watched(link: WorkerLink, within_s: float | None = None) -> AsyncIterator[None]:
    """Calls that take long are not waited for longer than the worker answers others: a frozen one, or a
    machine that has lost its power, says nothing, and breaks no connection. Nor longer than ``within_s``,
    which is more than a worker takes that keeps its own deadlines.
    """
    limit = asyncio.timeout(within_s)
    watching: list[asyncio.Task[None]] = []
    # No task before it is needed: most calls are over long before.
    first = asyncio.get_running_loop().call_later(
        WATCH_EVERY_S, lambda: watching.append(asyncio.create_task(_watch(link, limit)))
    )
    try:
        async with limit:
            yield
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise LinkInterrupted("the worker did not answer in time", retry_after_s=1.0) from error
    finally:
        first.cancel()
        for task in watching:
            task.cancel()


def unwatched(link: WorkerLink, within_s: float | None = None) -> AbstractAsyncContextManager[None]:
    return nullcontext()


async def _watch(link: WorkerLink, limit: asyncio.Timeout) -> None:
    silent = 0
    while True:
        silent = 0 if await link.answers() else silent + 1
        if silent == SILENT_TIMES:
            break
        await asyncio.sleep(WATCH_EVERY_S)
    limit.reschedule(asyncio.get_running_loop().time())


Watch = Callable[[WorkerLink, float | None], AbstractAsyncContextManager[None]]


def of_worker(worker_id: str, error: SandlotError) -> SandlotError:
    """What a coordinator's client is told when the way to a worker fails, which is no matter of theirs."""
    details = {"reason": "worker_unreachable", "worker_id": worker_id}
    if isinstance(error, Unauthorized):
        # A request lay there until its token was over, or keys or clocks differ. Nothing was done.
        return Unavailable(
            f"worker {worker_id} did not take this coordinator's token ({error.message}); retry",
            retry_after_s=1.0,
            details=details,
        )
    if not is_of_the_way(error):
        return error
    kind = LinkInterrupted if isinstance(error, LinkInterrupted) else Unavailable
    return kind(
        f"worker {worker_id} cannot be reached from this coordinator, or no longer; retry",
        retry_after_s=1.0,
        may_have_executed=error.may_have_executed,
        details=details,
    )


class WorkerLinks:
    """``token``: for a worker, by its id. ``look``: raises for a session whose worker is not to be waited
    for; asked before a reader comes back to an exec.
    """

    def __init__(self, token: Callable[[str], str], look: Look | None = None) -> None:
        self._token = token
        self._look = look
        self._links: dict[tuple[str, str], WorkerLink] = {}
        self._large = ByteBudget(LARGE_BYTES_AT_ONCE)

    async def to(self, worker: WorkerAt) -> WorkerLink:
        key = (worker.id, worker.url)
        link = self._links.get(key)
        if link is None:
            if len(self._links) >= MAX_LINKS:
                oldest = next(iter(self._links))
                await self._links.pop(oldest).close()
            try:
                link = WorkerLink(worker.url, partial(self._token, worker.id), self._look, self._large)
            except InvalidRequest as error:
                raise Unavailable(
                    f"worker {worker.id} gives an address that cannot be used: {error.message}",
                    details={"reason": "worker_unreachable", "worker_id": worker.id},
                ) from error
            self._links[key] = link
        return link

    async def close(self) -> None:
        links, self._links = list(self._links.values()), {}
        for link in links:
            await link.close()
