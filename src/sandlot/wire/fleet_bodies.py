"""HTTP bodies that fleet members exchange, in addition to those of the public API."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from sandlot.domain.capacity.machine import MachineUse
from sandlot.domain.session import Assignment, CreateSession, Predecessor
from sandlot.wire.http_bodies import CreateSessionBody, SessionBody, wire_fields


@dataclass(frozen=True, slots=True)
class AssignedCreateBody:
    """A create that a coordinator has placed: the client's request, and the fleet's additions."""

    create: CreateSessionBody
    idempotency_key: str | None = None
    reservation: str | None = None
    predecessor: Predecessor | None = None
    lost: SessionBody | None = None
    opens: bool = True

    @classmethod
    def of(cls, request: CreateSession, assignment: Assignment) -> AssignedCreateBody:
        return cls(
            create=CreateSessionBody.of(request),
            idempotency_key=request.idempotency_key,
            reservation=assignment.reservation,
            predecessor=assignment.predecessor,
            lost=None if assignment.lost is None else SessionBody.of(assignment.lost),
            opens=assignment.opens,
        )

    def to_wire(self) -> dict[str, Any]:
        return {**wire_fields(self), "create": self.create.to_wire()}

    def request(self) -> CreateSession:
        return self.create.to_domain(idempotency_key=self.idempotency_key)

    def assignment(self) -> Assignment:
        return Assignment(
            reservation=self.reservation,
            predecessor=self.predecessor,
            lost=None if self.lost is None else self.lost.to_domain(),
            opens=self.opens,
        )


# Sent to drain and undrain, which take no body: servers of the first version want one.
EMPTY_BODY: Final = b"{}"


@dataclass(frozen=True, slots=True)
class WorkerBody:
    """A worker as its fleet knows it.

    id: the worker's name.
    url: where members and clients reach it.
    version: its version of Sandlot.
    state: ``alive``; ``late`` once its lease is over; ``gone`` when its sessions count as lost.
    epoch: grows with each start of the worker.
    lease_left_s: seconds until its lease is over; negative after that.
    sessions: how many sessions the worker says that it has.
    recorded: how many of its sessions the directory knows.
    warm: how many sandboxes are ready.
    free: how many more sessions it has room for.
    draining: whether it takes no new sessions.
    problems: what its operator should look at.
    machine: how much of the machine is in use; null if the worker does not say.
    trusts: whether it has the key that this coordinator signs with.
    """

    id: str
    url: str
    version: str
    state: str
    epoch: int
    lease_left_s: float
    sessions: int
    recorded: int
    warm: int
    free: int
    draining: bool
    problems: list[str] = field(default_factory=list)
    machine: MachineUse | None = None
    trusts: bool = True


@dataclass(frozen=True, slots=True)
class FleetBody:
    """A fleet as its directory knows it.

    settled: whether the directory knows all that exists. If not, nothing is created yet.
    sessions: how many sessions there are, living and lost.
    reservations: how many creates are under way.
    workers: all that have joined.
    """

    settled: bool
    sessions: int
    reservations: int
    workers: list[WorkerBody]


@dataclass(frozen=True, slots=True)
class PlacedSessionBody:
    """A session and where it is.

    session: the session, as the directory knows it.
    worker: the id of its worker.
    worker_state: ``alive``, ``late`` or ``gone``.
    """

    session: SessionBody
    worker: str
    worker_state: str


@dataclass(frozen=True, slots=True)
class PlacedSessionsBody:
    """One page of a tenant's sessions.

    sessions: oldest first.
    next: send it as ``after`` to get the next page; null on the last one.
    """

    sessions: list[PlacedSessionBody]
    next: str | None = None
