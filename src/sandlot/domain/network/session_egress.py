"""What one session may connect to, put together from its environment, its own policy and grants. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from sandlot.domain.errors import InvalidRequest
from sandlot.domain.network.addresses import Address
from sandlot.domain.network.caps import Caps
from sandlot.domain.network.decisions import Allowed, Decision, Denied, not_allowed
from sandlot.domain.network.hosts import Host, Target
from sandlot.domain.network.policy import EgressPolicy, permission_by
from sandlot.domain.network.rules import Rule, parse_rules, rules_of

MAX_GRANTS: Final = 100
MIN_GRANT_S: Final = 1.0
MAX_GRANT_S: Final = 7 * 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Grant:
    """An entry that was allowed while the session lived. ``until``: when it ends; None for never."""

    entry: str
    until: float | None = None

    def __post_init__(self) -> None:
        parse_rules(self.entry)  # raises for one that says nothing

    @property
    def rules(self) -> tuple[Rule, ...]:
        return rules_of((self.entry,))

    def holds(self, now: float) -> bool:
        return self.until is None or now < self.until


@dataclass(frozen=True, slots=True)
class SessionEgress:
    """environment: the policy of the environment. Its rules that deny and its caps hold for all sessions.
    own: the policy that the session asked for, in place of what the environment allows; None for none.
    ceiling: the most that a session may ask for beyond what its environment allows; None if the operator sets
        no ceiling.
    grants: what was allowed later.
    """

    environment: EgressPolicy = field(default_factory=EgressPolicy)
    own: EgressPolicy | None = None
    ceiling: EgressPolicy | None = None
    grants: tuple[Grant, ...] = ()

    def asking(self, own: EgressPolicy) -> SessionEgress:
        """With this policy in place of what was asked for and granted before."""
        self._check_ceiling(own.allow_rules)
        return replace(self, own=own, grants=())

    @property
    def policy(self) -> EgressPolicy:
        """All rules and caps that the session has by its policies, without grants and the ceiling."""
        deny = dict.fromkeys(entry for policy in self._denying for entry in policy.deny)
        return EgressPolicy(self._asked.allow, tuple(deny), self.caps)

    @property
    def caps(self) -> Caps:
        caps = self.environment.caps
        return caps if self.own is None else caps.tightened(self.own.caps)

    def entries(self, now: float) -> tuple[str, ...]:
        """All that is allowed now, as people wrote it."""
        granted = (grant.entry for grant in self.grants if grant.holds(now))
        return tuple(dict.fromkeys((*self._asked.allow, *granted)))

    def denial_of(self, target: Target) -> Denied | None:
        """The denial if a rule denies the target, whatever else allows it."""
        for policy in self._denying:
            if (denial := policy.denial_of(target)) is not None:
                return denial
        return None

    def decide(self, host: Host, port: int, now: float) -> Decision:
        target = Target(host, port)
        if (denial := self.denial_of(target)) is not None:
            return denial
        granted = (rule for grant in self.grants if grant.holds(now) for rule in grant.rules)
        rules = (*self._asked.allow_rules, *granted)
        allowed = permission_by(rules, target)
        if allowed is None:
            return not_allowed(target, self.entries(now), rules)
        if self.ceiling is None:
            return allowed
        within = permission_by((*self.ceiling.allow_rules, *self.environment.allow_rules), target)
        if within is None:
            return _above_ceiling(target)
        # Both must name the port for any protocol to be spoken there.
        return Allowed(allowed.rule, any_protocol=allowed.any_protocol and within.any_protocol)

    def denial_of_address(self, target: Target, address: Address) -> Denied | None:
        """The denial if a rule denies an address that the target's name resolved to."""
        for policy in self._denying:
            if (denial := policy.denial_of_address(target, address)) is not None:
                return denial
        return None

    def with_grant(self, entry: str, now: float, for_s: float | None = None) -> SessionEgress:
        """Also allow ``entry``, for so many seconds. Rules that deny still win."""
        grant = Grant(entry, None if for_s is None else now + for_s)
        self._check_ceiling(grant.rules)
        if for_s is not None and not MIN_GRANT_S <= for_s <= MAX_GRANT_S:
            raise InvalidRequest(f"for_s must be {MIN_GRANT_S:g} to {MAX_GRANT_S:g} seconds, not {for_s:g}.")
        kept = [other for other in self.grants if other.holds(now) and other.entry != entry]
        if len(kept) >= MAX_GRANTS:
            raise InvalidRequest(
                f"This session has {MAX_GRANTS} grants, the most that one can have. Revoke some, or set its "
                "policy."
            )
        return replace(self, grants=(*kept, grant))

    def without_grant(self, entry: str) -> SessionEgress:
        kept = tuple(grant for grant in self.grants if grant.entry != entry)
        if len(kept) == len(self.grants):
            granted = ", ".join(grant.entry for grant in self.grants) or "nothing"
            raise InvalidRequest(f"{entry!r:.80} was not granted to this session. Granted is: {granted}.")
        return replace(self, grants=kept)

    @property
    def _asked(self) -> EgressPolicy:
        return self.environment if self.own is None else self.own

    @property
    def _denying(self) -> tuple[EgressPolicy, ...]:
        layers = (self.ceiling, self.environment, self.own)
        return tuple(policy for policy in layers if policy is not None)

    def _check_ceiling(self, rules: tuple[Rule, ...]) -> None:
        """Refuse at once what could never be reached."""
        for rule in rules:
            if self.ceiling is None or self.environment.includes(rule):
                continue
            if not self.ceiling.includes(rule):
                allowed = (
                    ", ".join(dict.fromkeys((*self.environment.allow, *self.ceiling.allow))) or "nothing"
                )
                raise InvalidRequest(
                    f"{rule.entry} is more than sessions may be allowed here, which is: {allowed}. Ask the "
                    "operator."
                )


def _above_ceiling(target: Target) -> Denied:
    return Denied(
        target=str(target),
        rule="above the ceiling",
        why="The operator does not let any session reach it.",
        ask="Ask the operator to raise the ceiling.",
    )
