"""The way from a coordinator to its workers: the client's own HTTP implementation, one for each address."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import msgspec

from sandlot.client.http import HttpService
from sandlot.client.http.connection import Connection
from sandlot.client.http.problems import is_of_the_way
from sandlot.client.http.request import encode, segment
from sandlot.domain.errors import InvalidRequest, LinkInterrupted, SandlotError, Unauthorized, Unavailable
from sandlot.domain.service import Opened
from sandlot.domain.session import Assignment, CreateSession, Session
from sandlot.fleet.directory import WorkerAt
from sandlot.fleet.sending import Sender
from sandlot.wire.fleet_bodies import AssignedCreateBody, DrainBody
from sandlot.wire.http_bodies import SessionBody

CONNECT_S: Final = 2.0
# Together with the one above less than a client waits for new access.
GET_READ_S: Final = 2.5
PROBE_S: Final = 1.5
# A call that lasts is accompanied by the question whether anybody is there; so often unanswered, it is over.
WATCH_EVERY_S: Final = 3.0
SILENT_TIMES: Final = 2
# Addresses that are kept open. A cell has some hundred workers; one that moves leaves its old one behind.
MAX_LINKS: Final = 4096

_SESSION: Final = msgspec.json.Decoder(SessionBody)


class WorkerLink(HttpService):
    """``HttpService`` to a worker, and what only members of a fleet may ask."""

    def __init__(self, url: str, token: Callable[[], str], sender: Sender | None = None) -> None:
        # No proxy: the token, and what a create carries, are for this worker alone.
        connection = Connection(url, token, connect_timeout_s=CONNECT_S, proxy=False)
        super().__init__(url, direct=False, connection=connection)
        self._token = token
        self._sender = sender or Sender()

    async def get_session(self, session_id: str) -> Session:
        """Once, and not for long: where a worker cannot be reached, the directory knows the session too."""
        path = f"/v1/sessions/{segment(session_id)}"
        _, body = await self._connection.call_once("GET", path, read_timeout_s=GET_READ_S)
        return self._session(body)

    async def create_assigned(self, request: CreateSession, assignment: Assignment) -> Opened:
        """The request has an idempotency key: sent twice, it makes one session."""
        assert request.idempotency_key is not None
        body = encode(AssignedCreateBody.of(request, assignment))
        status, answer = await self._sender.post(
            self.url, "/v1/fleet/sessions", body, self._token(), self._connection.tls()
        )
        return Opened(self._connection.decode(_SESSION, answer).to_domain(), created=status == 201)

    async def start_draining(self) -> None:
        await self._connection.call("POST", "/v1/fleet/drain", encode(DrainBody()), repeatable=True)

    async def answers(self) -> bool:
        """Whether anybody is there, at once or not at all: a frozen process accepts connections too."""
        try:
            await self._connection.call_once("GET", "/ready", read_timeout_s=PROBE_S)
        except SandlotError as error:
            return "request_id" in error.details  # it says that it is not ready
        return True


@asynccontextmanager
async def watched(link: WorkerLink) -> AsyncIterator[None]:
    """Calls that take long are not waited for longer than the worker answers others: a frozen one, or a
    machine that has lost its power, says nothing, and breaks no connection.
    """
    async with contextlib.AsyncExitStack() as stack:
        limit = asyncio.timeout(None)
        watching = asyncio.create_task(_watch(link, limit))
        stack.callback(watching.cancel)
        try:
            async with limit:
                yield
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise LinkInterrupted("the worker has ceased to answer", retry_after_s=1.0) from error


async def _watch(link: WorkerLink, limit: asyncio.Timeout) -> None:
    silent = 0
    while silent < SILENT_TIMES:
        await asyncio.sleep(WATCH_EVERY_S)
        silent = 0 if await link.answers() else silent + 1
    limit.reschedule(asyncio.get_running_loop().time())


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
    """``token``: for a worker, by its id."""

    def __init__(self, token: Callable[[str], str]) -> None:
        self._token = token
        self._sender = Sender()
        self._links: dict[tuple[str, str], WorkerLink] = {}

    async def to(self, worker: WorkerAt) -> WorkerLink:
        key = (worker.id, worker.url)
        link = self._links.get(key)
        if link is None:
            if len(self._links) >= MAX_LINKS:
                oldest = next(iter(self._links))
                await self._links.pop(oldest).close()
            try:
                link = WorkerLink(worker.url, partial(self._token, worker.id), self._sender)
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
        await self._sender.close()
