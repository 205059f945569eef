"""HTTP bodies that fleet members exchange, in addition to those of the public API."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

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

    @classmethod
    def of(cls, request: CreateSession, assignment: Assignment) -> AssignedCreateBody:
        return cls(
            create=CreateSessionBody.of(request),
            idempotency_key=request.idempotency_key,
            reservation=assignment.reservation,
            predecessor=assignment.predecessor,
            lost=None if assignment.lost is None else SessionBody.of(assignment.lost),
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
        )


@dataclass(frozen=True, slots=True)
class DrainBody:
    """Nothing to say yet, and may be left out. Members send it: earlier versions want one."""


@dataclass(frozen=True, slots=True)
class WorkerBody:
    """A worker as its fleet knows it. ``lease_left_s`` is negative once its lease is over. ``problems``: what
    it says that its operator should look at.
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
    # Whether the worker has the key that this coordinator signs with.
    trusts: bool = True


@dataclass(frozen=True, slots=True)
class FleetBody:
    """``settled``: the directory knows all that exists. ``sessions``: living and lost ones."""

    settled: bool
    sessions: int
    reservations: int
    workers: list[WorkerBody]


@dataclass(frozen=True, slots=True)
class PlacedSessionBody:
    session: SessionBody
    worker: str
    worker_state: str


@dataclass(frozen=True, slots=True)
class PlacedSessionsBody:
    sessions: list[PlacedSessionBody]
    next: str | None = None
