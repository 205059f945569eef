"""The harness that a service under test provides, and the fixtures that all cases share."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import pytest
import pytest_asyncio

from sandlot.client.async_client import AsyncClient
from sandlot.client.async_session import AsyncSession
from sandlot.client.result import Result
from sandlot.domain.computer import ByteStream
from sandlot.domain.errors import SandlotError
from sandlot.domain.service import SandboxService
from sandlot.domain.workspaces.workspace import StoreAbilities, StoreKind
from sandlot.testing.eventually import eventually

ONE_CALLER: Final = "this service has one caller in these tests"
NEEDS_SNAPSHOTS: Final = pytest.mark.usefixtures("takes_snapshots")
NEEDS_VOLUMES: Final = pytest.mark.usefixtures("keeps_volumes")


@dataclass
class ServiceHarness:
    """The service under test: a client for it, and ways to break its sandboxes.

    ``lose`` destroys a session's sandbox from outside and without notice. ``max_execs`` limits the
    concurrent execs of one session. ``service`` is the service behind the client, or None when the
    test's event loop cannot call it directly. ``never_allowed`` says whether a session may ask for
    no expiry. ``short_s`` is the timeout for cases that wait for one; it must be longer than
    creating a sandbox and checking it twice takes. ``measures_memory`` says whether results report
    the memory that a command used. ``freeze`` stops a session's sandbox until ``thaw``; without
    them, the suite skips the cases that need them. ``stranger`` is a client of another tenant that may do
    everything with sandboxes and nothing else; without it, the suite skips the cases with two tenants.
    ``policed`` is an environment with the policy ``policies.POLICY``; without it, the suite skips the cases
    about policies. ``give_policy`` gives the client's tenant a policy of the service's registry, which has
    ``policies.POLICY`` and the shipped ones; None takes it away. Without it, the suite skips the cases about
    policies of tenants. ``serve_port`` lets a function answer connections to a port of a session's sandbox;
    without it, the suite runs a program there. ``abilities`` says what the service's store of workspaces can
    do; the suite skips the cases that need more. ``coded`` is an environment whose image has a kernel for
    Python; without it, the suite skips the cases that run code.
    """

    client: AsyncClient
    lose: Callable[[str], Awaitable[None]]
    max_execs: int
    service: SandboxService | None = None
    never_allowed: bool = True
    short_s: float = 1.5
    measures_memory: bool = True
    freeze: Callable[[str], Awaitable[None]] | None = None
    thaw: Callable[[str], Awaitable[None]] | None = None
    stranger: AsyncClient | None = None
    policed: str | None = None
    give_policy: Callable[[str | None], None] | None = None
    serve_port: Callable[[str, int, Callable[[ByteStream], Awaitable[None]]], None] | None = None
    abilities: StoreAbilities = field(default_factory=lambda: StoreAbilities(StoreKind.VOLUME))
    coded: str | None = None


@pytest.mark.asyncio(loop_scope="session")
class Cases:
    """Fixtures for every group of cases.

    Cases that leave their session unchanged share ``session``. The others get a ``fresh`` one each.
    """

    @pytest_asyncio.fixture(loop_scope="session", scope="class")
    @classmethod
    async def session(cls, service_harness: ServiceHarness) -> AsyncIterator[AsyncSession]:
        session = await service_harness.client.create()
        yield session
        await session.delete()

    @pytest_asyncio.fixture(loop_scope="session")
    async def fresh(self, service_harness: ServiceHarness) -> AsyncIterator[AsyncSession]:
        session = await service_harness.client.create()
        yield session
        await session.delete()

    @pytest.fixture
    def client(self, service_harness: ServiceHarness) -> AsyncClient:
        return service_harness.client

    @pytest.fixture
    def stranger(self, service_harness: ServiceHarness) -> AsyncClient:
        """A client of another tenant, on the same service."""
        if service_harness.stranger is None:
            pytest.skip(ONE_CALLER)
        return service_harness.stranger

    @pytest.fixture
    def service(self, service_harness: ServiceHarness) -> SandboxService:
        if service_harness.service is None:
            pytest.skip("this client's service lives on an event loop of its own")
        return service_harness.service

    @pytest.fixture
    def takes_snapshots(self, service_harness: ServiceHarness) -> None:
        if not service_harness.abilities.snapshots:
            pytest.skip("this service takes no snapshots")

    @pytest.fixture
    def keeps_volumes(self, service_harness: ServiceHarness) -> None:
        if not service_harness.abilities.volumes:
            pytest.skip("this service keeps no volumes")


def unique(prefix: str = "case") -> str:
    return f"{prefix}-{secrets.token_hex(6)}"


@asynccontextmanager
async def deleted_afterwards(opening: Awaitable[AsyncSession]) -> AsyncIterator[AsyncSession]:
    """Opens a thread's session and deletes it afterwards; its own context manager would keep it."""
    session = await opening
    try:
        yield session
    finally:
        await session.delete()


async def ok(session: AsyncSession, command: str, **options: object) -> str:
    """Runs a command that must succeed and returns its output."""
    result: Result = await session.run(command, timeout_s=30, **options)  # type: ignore[arg-type]
    assert result.ok, result
    return result.output


async def raises_within(
    call: Callable[[], Awaitable[object]], error: type[SandlotError], seconds: float
) -> SandlotError:
    """Repeats a call until it raises the error, and returns that error."""
    caught: list[SandlotError] = []

    async def raised() -> bool:
        try:
            await call()
        except error as found:
            caught.append(found)
        return bool(caught)

    await eventually(raised, seconds, error.__name__)
    return caught[0]


def check_three_fields(error: SandlotError) -> None:
    """Checks the fields that every error has, on every route it may have taken."""
    assert error.code == type(error).code != "internal"
    assert isinstance(error.retryable, bool)
    assert isinstance(error.may_have_executed, bool)
    assert error.message
    assert str(error) == error.message
