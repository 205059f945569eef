"""What the cases need of a service under test, and the fixtures that they share."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
import pytest_asyncio

from sandlot.client.async_client import AsyncClient
from sandlot.client.async_session import AsyncSession
from sandlot.client.result import Result
from sandlot.domain.errors import SandlotError
from sandlot.domain.service import SandboxService
from sandlot.testing.eventually import eventually


@dataclass
class ServiceHarness:
    """``lose`` takes a session's sandbox away, from outside and unannounced. ``max_execs`` is the cap of one session.

    ``service`` is what the client speaks to, where it can be spoken to from the test's own event loop.
    ``never_allowed``: whether a session may ask to live for ever. ``short_s`` is a timeout for the cases that wait
    for one: longer than it takes to make a sandbox, and to look twice. ``measures_memory``: whether commands use any.
    ``freeze`` makes a session's sandbox stand still until ``thaw``; where a test cannot, these cases are left out.
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


@pytest.mark.asyncio(loop_scope="session")
class Cases:
    """Fixtures of every group of cases: one session for all that leave it as it was, a fresh one for the others."""

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


def unique(word: str = "case") -> str:
    return f"{word}-{secrets.token_hex(6)}"


@asynccontextmanager
async def deleted(opening: Awaitable[AsyncSession]) -> AsyncIterator[AsyncSession]:
    """A thread's session, which its own context would leave to the conversation."""
    session = await opening
    try:
        yield session
    finally:
        await session.delete()


async def ok(session: AsyncSession, command: str, **options: object) -> str:
    """Runs a command that must succeed and gives its output."""
    result: Result = await session.run(command, timeout_s=30, **options)  # type: ignore[arg-type]
    assert result.ok, result
    return result.output


async def raises_within(
    call: Callable[[], Awaitable[object]], error: type[SandlotError], seconds: float
) -> SandlotError:
    """Calls until it raises the error, and gives it."""
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
    """What every error carries, whichever way it came."""
    assert error.code == type(error).code != "internal"
    assert isinstance(error.retryable, bool)
    assert isinstance(error.may_have_executed, bool)
    assert error.message
    assert str(error) == error.message
