"""Two real servers: a coordinator that hands out access, a worker that takes tokens alone, and one fake service behind
both, so that whoever is asked, what has run is counted in one place.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, cast

from sandlot.client.http import HttpService
from sandlot.domain.callers.principal import Principal
from sandlot.domain.errors import (
    SandlotError,
)
from sandlot.domain.execution import ExecRequest, ExecResult
from sandlot.domain.service import Access, SandboxService, ServiceHealth
from sandlot.domain.session import CreateSession, Session
from sandlot.fleet.access import AccessTokens, TokenGate
from sandlot.fleet.signing_keys import PublicKeys, SigningKey
from sandlot.testing import FakeService
from tests.service.served import served

SIGNING_KEY = SigningKey.generate("k1")
API_KEY = "the-key-of-the-coordinator"


class Heard:
    """A service that notes what it was asked, and may refuse."""

    def __init__(self, fake: FakeService) -> None:
        self._fake = fake
        self.calls: list[str] = []
        self.raises: Callable[[], SandlotError] | None = None

    def acting_for(self, principal: Principal) -> SandboxService:
        return cast(SandboxService, self)

    async def health(self) -> ServiceHealth:
        self.calls.append("health")
        return await self._fake.health()

    def __getattr__(self, name: str) -> Any:
        self.calls.append(name)
        if self.raises is not None:
            raise self.raises()
        return getattr(self._fake, name)

    def since(self) -> list[str]:
        calls, self.calls = self.calls, []
        return calls


class NotedGate(TokenGate):
    refused = admitted = 0

    def admit(self, token: bytes, path: str) -> Principal | SandlotError:
        admitted = super().admit(token, path)
        if isinstance(admitted, Principal):
            self.admitted += 1
        else:
            self.refused += 1
        return admitted


@dataclass
class Rig:
    fake: FakeService
    coordinator: Heard
    worker: Heard
    gate: NotedGate
    service: HttpService
    url: str
    worker_url: str
    tokens: AccessTokens
    where: str | None  # what the coordinator says
    stopping: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)

    async def session(self) -> str:
        opened = await self.service.create_session(CreateSession())
        assert self.coordinator.since() == ["create_session"]
        return opened.session.id

    async def run(self, session_id: str, command: str = "echo hi") -> ExecResult:
        request = ExecRequest(command=command)
        result = await self.service.execute(session_id, request)
        assert sum(call.request.exec_id == request.exec_id for call in self.fake.calls) == 1
        return result

    async def stop_worker(self) -> None:
        await self.stopping.aclose()

    def access(self, caller: Principal, session: Session) -> Access | None:
        return None if self.where is None else self.tokens.for_session(caller, session, self.where, "w1")


@contextlib.asynccontextmanager
async def rigged(
    *,
    lifetime_s: float = 60.0,
    clock: Callable[[], float] = time.time,
    worker_keys: PublicKeys = SIGNING_KEY.public,
    direct: bool = True,
) -> AsyncIterator[Rig]:
    fake = FakeService()
    coordinator, worker = Heard(fake), Heard(fake)

    def generation_of(session_id: str) -> int | None:
        record = fake._records.get(session_id)
        return None if record is None else record.session.generation

    gate = NotedGate(worker_keys, worker_id="w1", generation_of=generation_of, clock=clock)
    tokens = AccessTokens(SIGNING_KEY, lifetime_s=lifetime_s, clock=clock)
    async with contextlib.AsyncExitStack() as stack:
        stopping = await stack.enter_async_context(contextlib.AsyncExitStack())
        worker_url = await stopping.enter_async_context(served(worker, tokens=gate, worker_id="w1"))
        told: list[Rig] = []
        url = await stack.enter_async_context(
            served(
                coordinator, api_key=API_KEY, access=lambda caller, session: told[0].access(caller, session)
            )
        )
        service = HttpService(url, API_KEY, direct=direct)
        stack.push_async_callback(service.close)
        told.append(
            Rig(fake, coordinator, worker, gate, service, url, worker_url, tokens, worker_url, stopping)
        )
        yield told[0]
        await fake.close()


async def pieces(*content: bytes) -> AsyncIterator[bytes]:
    for piece in content:
        yield piece
