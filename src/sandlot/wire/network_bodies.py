"""JSON bodies of sessions' networks. A policy is written as people write it in YAML."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from sandlot.domain.network.decisions import Denied
from sandlot.domain.network.policy import EgressPolicy
from sandlot.domain.network.session_egress import Grant
from sandlot.domain.network.status import Forward, NetworkChange, NetworkStatus, Traffic
from sandlot.wire.http_bodies import STRICT, PolicyBody, policy_body, policy_of


@dataclass(frozen=True, slots=True)
class NetworkChangeBody:
    """What to change of a session's network: all of it, or nothing if a part is refused.

    policy: ``none``, ``public``, a list of what to allow, or an object with ``allow``, ``deny`` and ``caps``.
        It replaces what the session asked for before, and ends all grants.
    allow: entries to allow now, such as ``example.com``, ``db.example.com:5432`` or ``pypi``.
    for_s: for how many seconds; null: as long as the session lives.
    revoke: entries that were allowed so, to take back.
    forward: ports inside to lead to a host outside.
    unforward: ports inside to close again.
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    policy: PolicyBody | None = None
    allow: list[str] = field(default_factory=list)
    for_s: float | None = None
    revoke: list[str] = field(default_factory=list)
    forward: list[Forward] = field(default_factory=list)
    unforward: list[int] = field(default_factory=list)

    def to_domain(self) -> NetworkChange:
        return NetworkChange(
            policy=policy_of(self.policy),
            allow=tuple(self.allow),
            for_s=self.for_s,
            revoke=tuple(self.revoke),
            forward=tuple(self.forward),
            unforward=tuple(self.unforward),
        )

    @classmethod
    def of(cls, change: NetworkChange) -> NetworkChangeBody:
        return cls(
            policy=policy_body(change.policy),
            allow=list(change.allow),
            for_s=change.for_s,
            revoke=list(change.revoke),
            forward=list(change.forward),
            unforward=list(change.unforward),
        )


@dataclass(frozen=True, slots=True)
class NetworkBody:
    """A session's network now.

    policy: the rules and caps that hold: those that the session asked for or its environment has, with all
        rules that deny. Grants come on top.
    grants: what was allowed later, and until when, in seconds since the epoch.
    forwards: the ports inside that lead outside.
    traffic: what the session has done so far, since its worker started.
    denied: the latest denials, oldest first.
    """

    policy: EgressPolicy
    grants: list[Grant]
    forwards: list[Forward]
    traffic: Traffic
    denied: list[Denied]

    @classmethod
    def of(cls, status: NetworkStatus) -> NetworkBody:
        return cls(
            status.policy, list(status.grants), list(status.forwards), status.traffic, list(status.denied)
        )

    def to_domain(self) -> NetworkStatus:
        return NetworkStatus(
            self.policy, tuple(self.grants), tuple(self.forwards), self.traffic, tuple(self.denied)
        )
