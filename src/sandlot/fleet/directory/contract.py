"""``Directory``: the fleet's shared record of workers, their free room, and where sessions are.

The directory is an index, not the source of truth. Workers hold the sandboxes and know their
sessions, and they fill an emptied directory again. The contract makes two rules hard to break:

- **An unsettled directory never answers "not found".** It may not know every session for one lease
  after its creation, and until every returning worker has recorded its sessions. During that time
  ``find``, ``page`` and ``place`` raise ``Unavailable`` instead of answering that something does
  not exist. So an emptied Redis never causes a delete, or a second sandbox for a thread.
- **Only the holder of a worker's lease writes for that worker.** A lease carries an epoch that
  grows with each join. A process with an older lease gets ``Fenced``.

The directory keeps its own time, because the clocks of workers may differ by hours. This time stops
while the directory is unreachable, so that an outage of the directory never makes workers look
dead. ``sandlot.testing.directory_suite`` proves that all implementations behave the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from sandlot.domain.callers.limits import Allowance, Use
from sandlot.domain.capacity.limits import Limits
from sandlot.domain.capacity.machine import MachineUse
from sandlot.domain.capacity.readiness import Readiness
from sandlot.domain.errors import Conflict, InvalidRequest
from sandlot.domain.session import Session
from sandlot.fleet.directory.lease import Lease
from sandlot.fleet.directory.volume_names import VolumeNames


class Fenced(Conflict):
    """The lease is not the worker's current one.

    ``replaced`` means that another process has joined under this id since. This process must stop
    commanding sandboxes. Otherwise the directory has no record of the lease, because it was emptied
    or lost its last writes: join again.
    """

    def __init__(self, message: str, *, replaced: bool) -> None:
        super().__init__(message, details={"replaced": replaced})
        self.replaced = replaced


@dataclass(frozen=True, slots=True)
class Timings:
    """Durations in seconds of the directory's time. All members of a fleet must use the same."""

    # How long a worker counts as alive after its last report. Workers report three times per lease.
    lease_s: float = 10.0
    # How long after the end of its lease a worker's sessions can come back. Then they are lost.
    lost_after_s: float = 60.0
    # How long to reserve a place for a session in creation. Longer than any client waits for it.
    reservation_s: float = 120.0
    # How long to remember an ended session. It takes as much memory as a live one.
    remember_ended_s: float = 3600.0
    # How long to remember the lost sessions of a worker that never came back.
    remember_lost_s: float = 24 * 3600.0

    def __post_init__(self) -> None:
        if not 0 < self.lease_s <= self.lost_after_s:
            # After an outage of the directory all leases have expired, and workers need time to
            # report before their sessions count as lost.
            raise InvalidRequest(
                "lease_s must be more than 0, and lost_after_s must not be less than lease_s."
            )


class WorkerState(StrEnum):
    ALIVE = "alive"
    LATE = "late"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class WorkerCard:
    """How a worker introduces itself when it joins. ``url`` is where other members reach it."""

    id: str
    url: str
    version: str


@dataclass(frozen=True, slots=True)
class Room:
    """A worker's capacity for one environment.

    ``warm`` is the number of sandboxes that are ready. ``free`` is how many more sessions of
    default size fit, including the warm ones. The worker's own limit and the memory, cores and
    processes of its machine bound it.
    """

    warm: int
    free: int


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """A worker's regular report to the directory.

    ``complete`` means that all its sessions are recorded in the generation of the last reply.
    ``problems`` lists what its operator should fix, such as a full disk.
    """

    room: Mapping[str, Room] = field(default_factory=dict)
    sessions: int = 0
    draining: bool = False
    complete: bool = True
    problems: tuple[str, ...] = ()
    # Workers of earlier versions report no machine and no keys.
    machine: MachineUse | None = None
    # Fingerprints of the signing keys that the worker accepts.
    keys: tuple[str, ...] = ()
    # How far the worker is with each environment. Earlier versions do not say.
    readiness: Mapping[str, Readiness] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReportReply:
    """The directory's reply to a report.

    ``intact`` is false, once, if the directory has lost writes of this worker in a failover or a
    crash. If so, or if ``generation`` is new, the worker must record all its sessions again. It
    reports ``complete=False`` until it has.
    """

    generation: str
    intact: bool


@dataclass(frozen=True, slots=True)
class WorkerRef:
    """A reference to a worker: its address, epoch and state.

    ``expired_for_s`` is the time since its lease expired, as far as the directory knows. It is 0
    while the lease is valid.
    """

    id: str
    url: str
    epoch: int
    state: WorkerState = WorkerState.ALIVE
    expired_for_s: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A worker as the directory knows it."""

    ref: WorkerRef
    version: str
    # The remaining time of its lease, negative after its end.
    lease_left_s: float
    # None until its first report.
    report: WorkerReport | None
    # How many live and lost sessions the directory has for it.
    recorded: int


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """A create's request for a place.

    ``limits`` are those of the sandbox, and ``created_by`` the caller's key: they count towards the limits of
    ``allowances``, from here until the session ends. Sessions in creation count too.
    ``units`` is the size of the sandbox, in default sandboxes of the environment. Room is counted
    in the same unit.
    ``takes_over`` is a session whose worker is gone. It gets a new sandbox on another worker.
    ``avoid`` lists the few workers that the caller has just failed to reach. Sessions that exist
    there do not move.
    ``only`` is the worker that a new session must be placed on, because it alone has what the session needs.
    """

    tenant: str
    environment: str
    thread: str | None = None
    idempotency_key: str | None = None
    created_by: str = ""
    limits: Limits = field(default_factory=Limits)
    allowances: tuple[Allowance, ...] = ()
    takes_over: str | None = None
    avoid: tuple[str, ...] = ()
    only: str | None = None
    units: int = 1


@dataclass(frozen=True, slots=True)
class Place:
    """The worker that a create goes to.

    ``known`` means that the thread, the key or the session already has this worker. The worker
    itself does get-or-create.
    ``reservation`` goes to the worker with the request, and comes back with the record. Call
    ``give_back`` if the request failed without a session. None if the session is already recorded.
    ``previous`` is the thread's last session, which has ended. The new session names it as its
    predecessor.
    ``lost`` is the recorded session to take over, with ``takes_over``.
    """

    worker: WorkerRef
    known: bool
    reservation: str | None = None
    previous: Session | None = None
    lost: Session | None = None


@dataclass(frozen=True, slots=True)
class LostPlace:
    """The thread or key has a session whose worker is gone.

    The caller reports the loss, or calls ``place`` again with ``takes_over``.
    """

    session: Session
    worker: WorkerRef


@dataclass(frozen=True, slots=True)
class SessionEntry:
    """A worker's record of one session. Each record is complete and replaces the one before it.

    ``reservation`` is the one that came with the create, if any.
    """

    session: Session
    reservation: str | None = None
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True)
class FoundSession:
    """A session and its worker.

    If the worker is GONE, the sandbox is lost, whatever the session's state.
    """

    session: Session
    worker: WorkerRef


@dataclass(frozen=True, slots=True)
class FoundPage:
    """One page of sessions. ``next`` is the ``after`` of the next page, None on the last one."""

    found: tuple[FoundSession, ...]
    next: str | None


@dataclass(frozen=True, slots=True)
class HeldPage:
    """One page of session ids, with ``next`` as in ``FoundPage``. An id may appear twice."""

    ids: tuple[str, ...]
    next: str | None


@dataclass(frozen=True, slots=True)
class DirectoryStatus:
    """``sessions`` counts live and lost sessions, ``reservations`` the sessions in creation."""

    generation: str
    settled: bool
    sessions: int
    reservations: int


class Directory(VolumeNames, Protocol):
    """The contract. Every method raises ``Unavailable`` while the directory is unreachable.

    The error has ``retry_after_s``.
    """

    @property
    def timings(self) -> Timings: ...

    # workers

    async def join(self, card: WorkerCard, token: str, *, last_epoch: int = 0) -> Lease:
        """Join the fleet and get a lease.

        ``token`` identifies the process. ``last_epoch`` is the worker's highest epoch so far, so
        that epochs keep growing after the directory was emptied. Raises ``Conflict`` while another
        process has a valid lease.
        """
        ...

    async def report(self, lease: Lease, report: WorkerReport) -> ReportReply:
        """Extend the lease, even an expired one, as long as no other process has taken it."""
        ...

    async def leave(self, lease: Lease) -> None:
        """End the lease at once. The sessions stay recorded, because the worker may come back."""
        ...

    async def workers(self) -> Sequence[WorkerStatus]:
        """List all workers, sorted by id. Meant for operators: the cost grows with the fleet."""
        ...

    # placing

    async def place(self, want: PlacementRequest) -> Place | LostPlace:
        """Choose a worker for a create. Concurrent requests for one thread or key get one worker.

        Raises ``Busy`` at the end of an allowance, and ``NotFound`` for an unknown ``takes_over``.
        Raises ``Unavailable`` while no worker, or not the one of ``only``, has room, while the
        session's worker is late, and while the directory is unsettled and cannot know the answer.
        """
        ...

    async def give_back(self, reservation: str) -> bool:
        """Give back a reservation after a create that failed and left no session.

        The place is free again once every caller that got this reservation has given it back, and
        no session was recorded meanwhile. Returns whether the place is free now.
        """
        ...

    # sessions

    async def record(self, lease: Lease, entries: Sequence[SessionEntry]) -> frozenset[str]:
        """Record live, lost and ended sessions, new or changed.

        Returns the ids of sessions that do not belong to this worker. Another worker has taken them
        over with a higher generation, or their thread has its live session on another worker.
        """
        ...

    async def forget(self, lease: Lease, session_ids: Sequence[str]) -> None:
        """Remove sessions of this worker as if they were never created.

        Ignores other workers' sessions.
        """
        ...

    async def held(self, worker_id: str, *, after: str | None = None) -> HeldPage:
        """List the live and lost sessions that the directory has for a worker, in no order.

        The worker compares them with its own sessions, and forgets those it does not have.
        """
        ...

    async def find(self, session_id: str) -> FoundSession | None:
        """Find a session, which may be an ended one that is still remembered. None if unknown."""
        ...

    async def page(
        self, tenant: str, *, thread: str | None = None, after: str | None = None, limit: int = 100
    ) -> FoundPage:
        """List live and lost sessions, oldest first."""
        ...

    async def bury(self, ended: Session) -> bool:
        """Record a session whose worker is gone as ended, because its user deleted it.

        If the worker comes back and records the session, the directory refuses it. Raises
        ``Conflict`` while the worker may still come back, or while another worker takes the session
        over. Returns false if there is no such session, or it has already ended.
        """
        ...

    # the directory itself

    async def status(self, tenant: str | None = None) -> DirectoryStatus:
        """``tenant``: count only the sessions of this one."""
        ...

    async def use(self, holder: str) -> Use:
        """What a tenant or a key uses: live and lost sessions, and sessions in creation."""
        ...

    async def sweep(self, limit: int = 100) -> int:
        """Forget up to ``limit`` sessions of workers gone for longer than ``remember_lost_s``.

        Also forgets such a worker once it has no sessions left. Returns the number of sessions. Any
        member may call this from time to time.
        """
        ...

    async def close(self) -> None: ...
