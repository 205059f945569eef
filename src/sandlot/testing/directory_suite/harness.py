"""The harness that a directory under test provides, and a small fleet that uses it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from sandlot.domain.callers.limits import NO_LIMITS, Allowance, CallerLimits, tenant_holder
from sandlot.domain.errors import Unavailable
from sandlot.domain.ids import new_sandbox_id, new_session_id
from sandlot.domain.session import EndReason, Session
from sandlot.domain.session_states import end
from sandlot.fleet.directory.contract import (
    Directory,
    Place,
    PlacementRequest,
    Room,
    SessionEntry,
    Timings,
    WorkerCard,
    WorkerReport,
)
from sandlot.fleet.directory.lease import Lease

# The cases never come near these times by accident, so a slow machine changes nothing.
TIMINGS = Timings(
    lease_s=10.0, lost_after_s=60.0, reservation_s=30.0, remember_ended_s=600.0, remember_lost_s=1800.0
)
MARGIN_S = 3.0
# Workers have their own clocks. These sessions come from a worker whose clock is far behind.
CREATED_AT = 1_700_000_000.0


@dataclass
class DirectoryHarness:
    """Two clients, ``directory`` and ``other``, of one new, empty directory with ``TIMINGS``.

    ``pass_time`` advances the directory's clock by some seconds. ``empty`` erases all its records.
    """

    directory: Directory
    other: Directory
    pass_time: Callable[[float], Awaitable[None]]
    empty: Callable[[], Awaitable[None]]


@dataclass
class Fleet:
    """Workers by name, with their leases and their last reports."""

    harness: DirectoryHarness
    leases: dict[str, Lease] = field(default_factory=dict)
    reports: dict[str, WorkerReport] = field(default_factory=dict)

    @property
    def directory(self) -> Directory:
        return self.harness.directory

    async def join(self, name: str, *, last_epoch: int = 0, token: str = "") -> Lease:
        card = WorkerCard(name, f"http://{name}:8000", "1.0")
        lease = await self.directory.join(card, token or f"process-{name}", last_epoch=last_epoch)
        self.leases[name] = lease
        return lease

    async def offer(self, name: str, *, warm: int = 0, free: int = 100, environment: str = "base") -> Lease:
        """Reports a worker's room, after joining if it has not joined yet."""
        lease = self.leases.get(name) or await self.join(name)
        self.reports[name] = WorkerReport(room={environment: Room(warm, free)})
        await self.directory.report(lease, self.reports[name])
        return lease

    async def settle(self) -> None:
        """Lets the directory's settling time pass while the workers stay alive."""
        await self.directory.status()
        await self.run_for(TIMINGS.lease_s + MARGIN_S)

    async def run_for(self, seconds: float, *, dead: tuple[str, ...] = ()) -> None:
        """Lets time pass while all workers except the dead ones keep reporting."""
        while seconds > 0:
            step = min(seconds, TIMINGS.lease_s / 2)
            await self.harness.pass_time(step)
            for name, lease in self.leases.items():
                if name not in dead:
                    await self.directory.report(lease, self.reports.get(name, WorkerReport()))
            seconds -= step

    async def record(self, place: Place, session: Session, key: str | None = None) -> frozenset[str]:
        """Records a session, as a worker does for a create that was sent to it."""
        return await self.directory.record(
            self.leases[place.worker.id], [SessionEntry(session, place.reservation, key)]
        )

    async def create(self, **options: Any) -> tuple[Session, Place]:
        """Runs a whole create that succeeds."""
        request = placement_request(**options)
        place = await self.directory.place(request)
        assert isinstance(place, Place)
        session = a_session(
            tenant=request.tenant,
            thread=request.thread,
            environment=request.environment,
            created_by=request.created_by,
            limits=request.limits,
        )
        assert await self.record(place, session, request.idempotency_key) == frozenset()
        return session, place

    async def count(self) -> int:
        """Counts the live and lost sessions of ``acme`` on one page."""
        return len((await self.directory.page("acme")).found)

    async def place(self, **options: Any) -> Place:
        place = await self.directory.place(placement_request(**options))
        assert isinstance(place, Place)
        return place


class Cases:
    @pytest.fixture
    def fleet(self, directory_harness: DirectoryHarness) -> Fleet:
        return Fleet(directory_harness)


def placement_request(**options: Any) -> PlacementRequest:
    """``at_most``: limits of the tenant. ``max_sessions``: one of them."""
    values = {"tenant": "acme", "environment": "base"} | options
    limits = values.pop("at_most", CallerLimits(sessions=values.pop("max_sessions", None)))
    if limits != NO_LIMITS:
        values["allowances"] = (Allowance(tenant_holder(values["tenant"]), limits),)
    return PlacementRequest(**values)


def a_session(*, tenant: str = "acme", age: float = 0.0, **fields: object) -> Session:
    created = CREATED_AT - age
    session = Session(new_session_id(), "base", created, created, tenant=tenant, sandbox_id=new_sandbox_id())
    return replace(session, **fields)  # type: ignore[arg-type]


def ended(session: Session) -> Session:
    return end(session, EndReason.DELETED, session.last_active_at + 1)


async def refused(call: Awaitable[object], reason: str) -> Unavailable:
    """Checks that the call is refused for this reason, with a time to retry after."""
    with pytest.raises(Unavailable) as caught:
        await call
    assert caught.value.details["reason"] == reason
    assert caught.value.retryable
    assert caught.value.retry_after_s is not None
    assert caught.value.retry_after_s > 0
    return caught.value
