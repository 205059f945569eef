"""``Directory``: what a fleet knows of itself. Which workers live, what room they have, where sessions are.

It is a directory, not the truth: workers hold the sandboxes and know their sessions, and an emptied
directory is filled again from them. Two rules follow, and the contract is shaped so that they are hard to
break:

- **An unsettled directory never says "there is none".** For one lease after its birth, and until every worker
  that came back has recorded its sessions, it may not know what exists. ``find``, ``page`` and ``place``
  raise ``Unavailable`` then instead of answering that something is not there. So nothing can be
  deleted, and no thread can get a second sandbox, because Redis was emptied.
- **Only the holder of a worker's lease writes for that worker.** A lease carries an epoch that grows with
  each join; whoever comes with an older one is ``Fenced``.

Time is the directory's own: the clocks of workers may differ by hours. It does not pass while nobody can
speak to the directory, so that an outage of the directory is never taken for the death of the workers.
``sandlot.testing.directory_suite`` proves that all implementations behave the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from sandlot.domain.errors import Conflict, InvalidRequest
from sandlot.domain.machine import MachineUse
from sandlot.domain.session import Session


class Fenced(Conflict):
    """The lease is not the worker's present one.

    ``replaced``: another process has joined under this id since, and this one must stop commanding sandboxes.
    Otherwise the directory has no record of the lease (it was emptied, or went back in time): join again.
    """

    def __init__(self, message: str, *, replaced: bool) -> None:
        super().__init__(message, details={"replaced": replaced})
        self.replaced = replaced


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds of the directory's time. All members of a fleet are given the same."""

    # How long a worker counts as alive after its last report; workers report three times in it.
    lease_s: float = 10.0
    # After the end of its lease: until then its sessions may come back, from then on they are lost.
    lost_after_s: float = 60.0
    # How long a place is kept for a session that is being made: longer than anybody waits for that.
    reservation_s: float = 120.0
    # How long an ended session is known as ended: it costs as much memory as a living one.
    remember_ended_s: float = 3600.0
    # How long lost sessions of a worker that never came back are known as lost.
    remember_lost_s: float = 24 * 3600.0

    def __post_init__(self) -> None:
        if not 0 < self.lease_s <= self.lost_after_s:
            # After an outage of the directory all leases are over, and workers must have time to say that
            # they live.
            raise InvalidRequest("lost_after_s must be at least lease_s, and both more than 0")


class WorkerState(StrEnum):
    ALIVE = "alive"
    LATE = "late"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class WorkerCard:
    id: str
    url: str
    version: str


@dataclass(frozen=True, slots=True)
class Lease:
    """What a worker's process holds after ``join``. ``generation`` is the directory's, not a session's.

    With a new lease the worker records all its sessions: why it had to join again, it cannot know.
    """

    worker_id: str
    epoch: int
    token: str
    generation: str


@dataclass(frozen=True, slots=True)
class Room:
    """``warm``: sandboxes that are ready. ``free``: how many more sessions of the usual size fit, the warm
    ones included: by the worker's own bound, and by the memory, cores and processes of its machine.
    """

    warm: int
    free: int


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """``complete``: all sessions of this worker are recorded in the generation that it was last told.
    ``problems``: what its operator should look at, as a disk that is full.
    """

    room: Mapping[str, Room] = field(default_factory=dict)
    sessions: int = 0
    draining: bool = False
    complete: bool = True
    problems: tuple[str, ...] = ()
    # None, and no keys, of an earlier version.
    machine: MachineUse | None = None
    # Fingerprints of the keys whose tokens it takes.
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Beat:
    """The answer to a report. The worker must record all its sessions again, and say ``complete=False``
    until it has, when ``generation`` is not the one that it recorded them in, or when ``intact`` is false:
    the directory has lost something that this worker had written (a failover, a crash). That is said once.
    """

    generation: str
    intact: bool


@dataclass(frozen=True, slots=True)
class WorkerAt:
    """Where a worker is, and which of its lives is meant. ``over_s``: for how long its lease is over, as far
    as the directory knows it.
    """

    id: str
    url: str
    epoch: int
    state: WorkerState = WorkerState.ALIVE
    over_s: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    at: WorkerAt
    version: str
    # How long its lease has still to go, or has been over (negative).
    lease_left_s: float
    # None until its first report.
    report: WorkerReport | None
    # How many living or lost sessions the directory holds for it.
    recorded: int


@dataclass(frozen=True, slots=True)
class Want:
    """What a create asks for. ``max_sessions`` is the tenant's quota; what is being made counts.

    ``units``: how many usual sandboxes of the environment it is as large as; rooms are counted in these.

    ``takes_over``: the session whose worker is gone and which shall get a new sandbox on another one.
    ``avoid``: the few workers that the caller could not reach just now; what is known there is not moved.
    """

    tenant: str
    environment: str
    thread: str | None = None
    idempotency_key: str | None = None
    max_sessions: int | None = None
    takes_over: str | None = None
    avoid: tuple[str, ...] = ()
    units: int = 1


@dataclass(frozen=True, slots=True)
class Place:
    """Where a create goes.

    ``known``: the thread, the key or the session has its worker already, which is itself get-or-create.
    ``reservation``: hand it to the worker with the request, so that it comes back with the record;
    ``give_back`` it if the request failed without a session. None where the session is recorded already.
    ``before``: the thread's last session, which has ended; the new one names it as its predecessor.
    ``lost``: with ``takes_over``, the session as it was recorded.
    """

    worker: WorkerAt
    known: bool
    reservation: str | None = None
    before: Session | None = None
    lost: Session | None = None


@dataclass(frozen=True, slots=True)
class LostPlace:
    """The thread or key has a session, and its worker is gone. Report the loss, or place with
    ``takes_over``.
    """

    session: Session
    worker: WorkerAt


@dataclass(frozen=True, slots=True)
class SessionEntry:
    """What a worker records, each time all of it. ``reservation`` is the one that came with the create, if
    any.
    """

    session: Session
    reservation: str | None = None
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """``worker.state`` GONE: the sandbox is lost, whatever the session says of itself."""

    session: Session
    worker: WorkerAt


@dataclass(frozen=True, slots=True)
class FoundPage:
    """``next`` is what to give as ``after`` for the following page; None at the end."""

    found: tuple[Found, ...]
    next: str | None


@dataclass(frozen=True, slots=True)
class HeldPage:
    """As ``FoundPage``; an id may come twice."""

    ids: tuple[str, ...]
    next: str | None


@dataclass(frozen=True, slots=True)
class DirectoryStatus:
    """``sessions``: living and lost. ``reservations``: those that are being made."""

    generation: str
    settled: bool
    sessions: int
    reservations: int


class Directory(Protocol):
    """Every method raises ``Unavailable``, with ``retry_after_s``, when the directory cannot be spoken to."""

    @property
    def timings(self) -> Timings: ...

    # workers

    async def join(self, card: WorkerCard, token: str, *, last_epoch: int = 0) -> Lease:
        """``token`` names the process. ``last_epoch``: the highest that the worker has ever had, so that
        epochs grow also where the directory was emptied. ``Conflict`` while another process's lease is
        alive.
        """
        ...

    async def report(self, lease: Lease, report: WorkerReport) -> Beat:
        """Extends the lease, also one that was over: nobody else has taken it."""
        ...

    async def leave(self, lease: Lease) -> None:
        """The lease is over at once. Its sessions stay recorded: the worker may come back for them."""
        ...

    async def workers(self) -> Sequence[WorkerStatus]:
        """All of them, by id. For people: the cost grows with their number."""
        ...

    # placing

    async def place(self, want: Want) -> Place | LostPlace:
        """The one call of a create. All that ask for one thread or key at once are sent to one worker.

        ``Busy`` at the tenant's quota. ``Unavailable`` while no worker has room, while the known worker is
        late, and, for what the directory cannot know yet, while it is unsettled. ``NotFound`` for an
        unknown ``takes_over``.
        """
        ...

    async def give_back(self, reservation: str) -> bool:
        """The create failed and left no session. The place is free again once all who were sent to it have
        given it back, and nothing was recorded meanwhile; whether it is.
        """
        ...

    # sessions

    async def record(self, lease: Lease, entries: Sequence[SessionEntry]) -> frozenset[str]:
        """Living, lost and ended sessions, new and changed. Returns the ids that are not this worker's:
        taken over with a higher generation elsewhere, or of a thread that has its living session on another
        worker.
        """
        ...

    async def forget(self, lease: Lease, session_ids: Sequence[str]) -> None:
        """Of those that are recorded for this worker: they never were."""
        ...

    async def held(self, worker_id: str, *, after: str | None = None) -> HeldPage:
        """The ids of living and lost sessions that the directory has for a worker, in no order; it compares
        them with its own and forgets what it does not have.
        """
        ...

    async def find(self, session_id: str) -> Found | None:
        """None: there is none. Also of sessions that have ended, as long as they are remembered."""
        ...

    async def page(
        self, tenant: str, *, thread: str | None = None, after: str | None = None, limit: int = 100
    ) -> FoundPage:
        """Living and lost ones, oldest first."""
        ...

    async def bury(self, ended: Session) -> bool:
        """A session whose worker is gone has ended: its user has deleted it. A worker that comes back with
        it is told that it is not its own. ``Conflict`` while the worker may come back, or another takes it
        over; false if there is none, or it had ended.
        """
        ...

    # the directory itself

    async def status(self) -> DirectoryStatus: ...

    async def sweep(self, limit: int = 100) -> int:
        """Forgets up to ``limit`` sessions of workers that are gone for longer than ``remember_lost_s``,
        and the workers themselves; how many sessions. Any member may call it now and then.
        """
        ...

    async def close(self) -> None: ...
