"""What the cases need of a directory under test, and a small fleet that speaks to it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

import pytest

from sandlot.domain.errors import Unavailable
from sandlot.domain.ids import new_sandbox_id, new_session_id
from sandlot.domain.session import EndReason, Session, end
from sandlot.fleet.directory import (
    Directory,
    Lease,
    Place,
    Room,
    SessionEntry,
    Timings,
    Want,
    WorkerCard,
    WorkerReport,
)

# No sum of the steps that cases take comes near one of these ends, so that a slow machine changes nothing.
TIMINGS = Timings(
    lease_s=10.0, lost_after_s=60.0, reservation_s=30.0, remember_ended_s=600.0, remember_lost_s=1800.0
)
SECONDS_OVER = 3.0
# The clocks of workers are theirs: sessions come from one that is a day behind.
CREATED_AT = 1_700_000_000.0


@dataclass
class DirectoryHarness:
    """``directory`` and ``other`` are two clients of one directory with ``TIMINGS``, new and empty.

    ``pass_time`` lets so many seconds of the directory's time pass. ``empty`` takes away all that it knows.
    """

    directory: Directory
    other: Directory
    pass_time: Callable[[float], Awaitable[None]]
    empty: Callable[[], Awaitable[None]]


@dataclass
class Fleet:
    """Workers by name, their leases and what they report."""

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
        """Joins if it has not, and reports its room."""
        lease = self.leases.get(name) or await self.join(name)
        self.reports[name] = WorkerReport(room={environment: Room(warm, free)})
        await self.directory.report(lease, self.reports[name])
        return lease

    async def settle(self) -> None:
        """Lets the directory's settling time pass; the workers live on."""
        await self.directory.status()
        await self.live(TIMINGS.lease_s + SECONDS_OVER)

    async def live(self, seconds: float, *, dead: tuple[str, ...] = ()) -> None:
        """Time passes, and all workers but the dead report on."""
        while seconds > 0:
            step = min(seconds, TIMINGS.lease_s / 2)
            await self.harness.pass_time(step)
            for name, lease in self.leases.items():
                if name not in dead:
                    await self.directory.report(lease, self.reports.get(name, WorkerReport()))
            seconds -= step

    async def make(self, place: Place, session: Session, key: str | None = None) -> frozenset[str]:
        """What the worker does with a create that was sent to it."""
        return await self.directory.record(
            self.leases[place.worker.id], [SessionEntry(session, place.reservation, key)]
        )

    async def create(self, **want: object) -> tuple[Session, Place]:
        """A whole create that goes well."""
        asked = wanting(**want)
        place = await self.directory.place(asked)
        assert isinstance(place, Place)
        session = a_session(tenant=asked.tenant, thread=asked.thread, environment=asked.environment)
        assert await self.make(place, session, asked.idempotency_key) == frozenset()
        return session, place

    async def count(self) -> int:
        """Living and lost sessions of ``acme``, as far as one page goes."""
        return len((await self.directory.page("acme")).found)

    async def placed(self, **want: object) -> Place:
        place = await self.directory.place(wanting(**want))
        assert isinstance(place, Place)
        return place


class Cases:
    @pytest.fixture
    def fleet(self, directory_harness: DirectoryHarness) -> Fleet:
        return Fleet(directory_harness)


def wanting(**want: object) -> Want:
    return Want(**({"tenant": "acme", "environment": "base"} | want))  # type: ignore[arg-type]


def a_session(*, tenant: str = "acme", age: float = 0.0, **fields: object) -> Session:
    created = CREATED_AT - age
    session = Session(new_session_id(), "base", created, created, tenant=tenant, sandbox_id=new_sandbox_id())
    return replace(session, **fields)  # type: ignore[arg-type]


def ended(session: Session) -> Session:
    return end(session, EndReason.DELETED, session.last_active_at + 1)


async def refused(call: Awaitable[object], reason: str) -> Unavailable:
    """The call is refused for this reason, and says when to come again."""
    with pytest.raises(Unavailable) as caught:
        await call
    assert caught.value.details["reason"] == reason
    assert caught.value.retryable
    assert caught.value.retry_after_s is not None
    assert caught.value.retry_after_s > 0
    return caught.value
