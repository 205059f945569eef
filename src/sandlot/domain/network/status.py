"""What a caller sees of a session's network, and what it may change. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from sandlot.domain.errors import InvalidRequest
from sandlot.domain.network.decisions import Denied
from sandlot.domain.network.hosts import Target, parse_target
from sandlot.domain.network.policy import EgressPolicy, parse_policy
from sandlot.domain.network.session_egress import Grant, SessionEgress
from sandlot.domain.network.variables import PROXY_PORTS

MAX_FORWARDS: Final = 32
MAX_ENTRIES_AT_ONCE: Final = 100
MIN_FORWARD_PORT: Final = 1024  # below it, only root can listen
# Of the policy that one session asks for: its fleet keeps it in memory.
MAX_POLICY_BYTES: Final = 16 * 1024


@dataclass(slots=True)
class Traffic:
    """What a session has done so far, since its worker started.

    open: connections that programs inside have now.
    connections: connections that they made.
    refused: connections that were too many.
    requests: requests and tunnels that reached a host.
    denied: requests and tunnels that were denied.
    sent_bytes: bytes sent to hosts, without what the proxy itself says.
    received_bytes: bytes received from hosts.
    """

    open: int = 0
    connections: int = 0
    refused: int = 0
    requests: int = 0
    denied: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Forward:
    """A port inside a sandbox that leads to one host outside, by the session's policy.

    port: the port on 127.0.0.1 inside.
    target: the host and its port, such as ``db.example.com:5432``.
    """

    port: int
    target: str

    def __post_init__(self) -> None:
        if not MIN_FORWARD_PORT <= self.port <= 65535 or self.port in PROXY_PORTS:
            raise InvalidRequest(
                f"A forward needs a port from {MIN_FORWARD_PORT} to 65535 that is not the proxy's "
                f"({', '.join(map(str, sorted(PROXY_PORTS)))}), not {self.port}."
            )
        parse_target(self.target)

    @property
    def leads_to(self) -> Target:
        return parse_target(self.target)


@dataclass(frozen=True, slots=True)
class NetworkChange:
    """What to change of a session's network: all of it, or nothing if a part is refused.

    policy: in place of what the session asked for before. It ends all grants.
    allow: entries to allow now, such as ``example.com`` or ``pypi``.
    for_s: for how many seconds; None: as long as the session lives.
    revoke: entries that were allowed so, to take back.
    forward: ports inside to lead outside.
    unforward: ports inside to close again.
    """

    policy: EgressPolicy | None = None
    allow: tuple[str, ...] = ()
    for_s: float | None = None
    revoke: tuple[str, ...] = ()
    forward: tuple[Forward, ...] = ()
    unforward: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.for_s is not None and not self.allow:
            raise InvalidRequest("for_s says how long to allow something. Give allow with it.")
        if max(map(len, (self.allow, self.revoke, self.forward, self.unforward))) > MAX_ENTRIES_AT_ONCE:
            raise InvalidRequest(f"At most {MAX_ENTRIES_AT_ONCE} entries can be changed at once.")
        if self.policy is not None:
            check_size(self.policy)


@dataclass(frozen=True, slots=True)
class NetworkStatus:
    """A session's network now.

    policy: the rules and caps that hold: those that the session asked for or its environment has, with all
        rules that deny. Grants come on top.
    grants: what was allowed later.
    forwards: the ports inside that lead outside.
    traffic: what the session has done so far.
    denied: the latest denials, oldest first.
    """

    policy: EgressPolicy = field(default_factory=EgressPolicy)
    grants: tuple[Grant, ...] = ()
    forwards: tuple[Forward, ...] = ()
    traffic: Traffic = field(default_factory=Traffic)
    denied: tuple[Denied, ...] = ()

    @classmethod
    def of(
        cls,
        egress: SessionEgress,
        forwards: tuple[Forward, ...],
        traffic: Traffic,
        denied: tuple[Denied, ...],
        now: float,
    ) -> NetworkStatus:
        holding = tuple(grant for grant in egress.grants if grant.holds(now))
        return cls(egress.policy, holding, forwards, traffic, denied)


def changed(
    egress: SessionEgress, forwards: tuple[Forward, ...], change: NetworkChange, now: float
) -> tuple[SessionEgress, tuple[Forward, ...]]:
    """What a session may reach after a change, and its forwards. Raises ``InvalidRequest`` if it may not."""
    if change.policy is not None:
        egress = egress.asking(change.policy)
    for entry in change.revoke:
        egress = egress.without_grant(entry)
    for entry in change.allow:
        egress = egress.with_grant(entry, now, change.for_s)
    by_port = {forward.port: forward for forward in forwards}
    for port in change.unforward:
        if by_port.pop(port, None) is None:
            raise InvalidRequest(f"Port {port} is not forwarded in this session.")
    for forward in change.forward:
        if by_port.get(forward.port, forward) != forward:
            raise InvalidRequest(
                f"Port {forward.port} already leads to {by_port[forward.port].target}. Remove that forward "
                "first."
            )
        target = forward.leads_to
        decision = egress.decide(target.host, target.port, now)
        if isinstance(decision, Denied):
            raise InvalidRequest(f"{decision.target} is not allowed. {decision.why} {decision.ask}")
        by_port[forward.port] = forward
    if len(by_port) > MAX_FORWARDS:
        raise InvalidRequest(f"A session can have at most {MAX_FORWARDS} forwards.")
    return egress, tuple(by_port.values())


def parse_network(document: Any) -> EgressPolicy:
    """The policy that a session asks for. It is smaller than an environment's may be."""
    policy = parse_policy(document)
    check_size(policy)
    return policy


def check_size(policy: EgressPolicy) -> None:
    if sum(len(entry) + 4 for entry in (*policy.allow, *policy.deny)) > MAX_POLICY_BYTES:
        raise InvalidRequest(
            f"The network policy of a session must not exceed {MAX_POLICY_BYTES} bytes. Declare an "
            "environment with it."
        )
