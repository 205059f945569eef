"""The way from a coordinator to its workers: the client's own HTTP implementation, one for each address."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from sandlot.client.http import HttpService
from sandlot.client.http.problems import is_of_the_way
from sandlot.client.http.request import encode
from sandlot.domain.errors import LinkInterrupted, SandlotError, Unauthorized, Unavailable
from sandlot.domain.service import Opened
from sandlot.domain.session import Assignment, CreateSession
from sandlot.wire.fleet_bodies import AssignedCreateBody, DrainBody
from sandlot.wire.http_bodies import SessionBody

CREATE_READ_S: Final = 90.0
PROBE_S: Final = 1.5
# Addresses that are kept open. A cell has some hundred workers; one that moves leaves its old one behind.
MAX_LINKS: Final = 4096

_SESSION: Final = msgspec.json.Decoder(SessionBody)


class WorkerLink(HttpService):
    """``HttpService`` to a worker, and what only members of a fleet may ask."""

    async def create_assigned(self, request: CreateSession, assignment: Assignment) -> Opened:
        body = encode(AssignedCreateBody.of(request, assignment))
        status, answer = await self._connection.call_once(
            "POST", "/v1/fleet/sessions", body, read_timeout_s=CREATE_READ_S
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
    def __init__(self, token: Callable[[], str]) -> None:
        self._token = token
        self._links: dict[str, WorkerLink] = {}

    async def to(self, url: str) -> WorkerLink:
        link = self._links.get(url)
        if link is None:
            if len(self._links) >= MAX_LINKS:
                oldest = next(iter(self._links))
                await self._links.pop(oldest).close()
            link = self._links[url] = WorkerLink(url, self._token, direct=False)
        return link

    async def close(self) -> None:
        links, self._links = list(self._links.values()), {}
        for link in links:
            await link.close()
