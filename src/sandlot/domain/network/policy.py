"""Egress policies: what a sandbox may connect to. Pure.

A policy is a wall, unlike a command policy: the worker makes every connection of a sandbox, by the policy.
What no rule allows is denied, and a rule that denies wins over all rules that allow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sandlot.domain.errors import InvalidRequest
from sandlot.domain.network.addresses import Address
from sandlot.domain.network.caps import Caps, parse_caps
from sandlot.domain.network.decisions import Allowed, Decision, Denied, not_allowed
from sandlot.domain.network.hosts import Host, Target
from sandlot.domain.network.rules import PUBLIC, Rule, parse_rules, rules_of
from sandlot.domain.text.suggestions import did_you_mean

NONE: Final = "none"
MAX_ENTRIES: Final = 500  # of one list
_FIELDS: Final = ("allow", "deny", "caps")


@dataclass(frozen=True, slots=True)
class EgressPolicy:
    """``allow`` and ``deny`` are entries as people write them; see ``sandlot.domain.network.rules``."""

    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    caps: Caps = field(default_factory=Caps)

    def __post_init__(self) -> None:
        for entry in (*self.allow, *self.deny):
            parse_rules(entry)  # raises for one that says nothing
        if PUBLIC in self.deny:
            raise InvalidRequest(f"deny: {PUBLIC} would deny everything. Write {NONE} as the policy instead.")

    @property
    def allow_rules(self) -> tuple[Rule, ...]:
        return rules_of(self.allow)

    @property
    def deny_rules(self) -> tuple[Rule, ...]:
        return rules_of(self.deny)

    def decide(self, host: Host, port: int) -> Decision:
        target = Target(host, port)
        return (
            self.denial_of(target)
            or self.permission_for(target)
            or not_allowed(target, self.allow, self.allow_rules)
        )

    def denial_of(self, target: Target) -> Denied | None:
        """The denial if a rule denies the target; None if none does."""
        rule = next((rule for rule in self.deny_rules if rule.denies(target)), None)
        return None if rule is None else _denied_by(rule, target)

    def denial_of_address(self, target: Target, address: Address) -> Denied | None:
        """The denial if a rule denies an address that the target's name resolved to."""
        for rule in self.deny_rules:
            if rule.denies_address(address, target.port):
                return _denied_by(rule, target)
        return None

    def permission_for(self, target: Target) -> Allowed | None:
        """What allows the target, whatever else denies it."""
        return permission_by(self.allow_rules, target)

    def includes(self, rule: Rule) -> bool:
        """Whether one rule of this policy allows everything that the given one allows."""
        return any(own.includes(rule) for own in self.allow_rules)

    def to_document(self) -> dict[str, Any]:
        """What ``parse_policy`` reads."""
        return {"allow": list(self.allow), "deny": list(self.deny), "caps": self.caps.to_document()}


# What sessions may ask for unless the operator says otherwise: every name, on the ports of the web.
DEFAULT_CEILING: Final = EgressPolicy((PUBLIC,))


def permission_by(rules: Iterable[Rule], target: Target) -> Allowed | None:
    """What of the rules allows the target. A rule that names the port comes first: it allows more."""
    allowing = [rule for rule in rules if rule.allows(target)]
    if not allowing:
        return None
    rule = next((rule for rule in allowing if rule.port is not None), allowing[0])
    return Allowed(rule.entry, any_protocol=rule.port is not None)


def parse_policy(document: Any) -> EgressPolicy:
    """The policy that a document describes: ``none``, ``public``, a list of what to allow, or a mapping with
    ``allow``, ``deny`` and ``caps``. An unknown field or value is an ``InvalidRequest``."""
    if isinstance(document, str):
        if document == NONE:
            return EgressPolicy()
        if document != PUBLIC:
            hint = did_you_mean(document[:80], (NONE, PUBLIC))
            raise InvalidRequest(
                f"Unknown egress policy {document!r:.80}.{hint} Write {NONE}, {PUBLIC} or a list of hosts."
            )
        return EgressPolicy(allow=(PUBLIC,))
    if not isinstance(document, Mapping):
        return EgressPolicy(allow=_entries(document, "allow"))
    for name in document:
        if name not in _FIELDS:
            raise InvalidRequest(
                f"Egress policy: unknown field {name!r:.80}.{did_you_mean(str(name)[:80], _FIELDS)} Fields "
                f"are: {', '.join(_FIELDS)}."
            )
    return EgressPolicy(
        allow=_entries(document.get("allow", ()), "allow"),
        deny=_entries(document.get("deny", ()), "deny"),
        caps=parse_caps(document.get("caps", {})),
    )


def _entries(value: Any, name: str) -> tuple[str, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes) or len(value) > MAX_ENTRIES:
        raise InvalidRequest(f"Egress policy: {name} must be a list of at most {MAX_ENTRIES} hosts.")
    return tuple(value)


def _denied_by(rule: Rule, target: Target) -> Denied:
    return Denied(
        target=str(target),
        rule=f"deny: {rule.entry}",
        why=f"The policy denies {rule.entry}, and a rule that denies wins.",
        ask="Use another host, or ask the operator to remove the rule.",
    )
