"""What a policy says about a connection, in words that a program's author or a model can act on. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sandlot.domain.network.hosts import Target
from sandlot.domain.network.rules import WEB_PORTS, Rule

MAX_SHOWN_ENTRIES: Final = 8


@dataclass(frozen=True, slots=True)
class Allowed:
    """``rule``: the entry that allows it. ``any_protocol``: whether the entry names the port, so that
    something other than HTTP and TLS with the right name may be spoken there."""

    rule: str
    any_protocol: bool = False


@dataclass(frozen=True, slots=True)
class Denied:
    """A connection that was not made.

    target: host and port.
    rule: which rule, in a few words.
    why: the reason, as a sentence.
    ask: what to do about it.
    """

    target: str
    rule: str
    why: str
    ask: str

    @property
    def text(self) -> str:
        """What the program inside reads."""
        return f"Sandlot denied the connection to {self.target}.\nRule: {self.rule}. {self.why}\n{self.ask}\n"


Decision = Allowed | Denied


def not_allowed(target: Target, entries: Sequence[str], rules: Sequence[Rule]) -> Denied:
    """The denial of a target that no rule allows. ``entries``: what is allowed, as people wrote it."""
    host = target.host
    if not host.is_name:
        why = "Addresses are refused unless they are listed. Use the host's name."
    elif any(rule.is_about(host) for rule in rules):
        why = f"The host is allowed on other ports, but not on {target.port}."
    elif rules:
        why = f"Allowed are: {_listed(entries)}."
    else:
        why = "This sandbox has no network."
    return Denied(
        target=str(target),
        rule="not allowed",
        why=why,
        ask=ask_for(target),
    )


def ask_for(target: Target) -> str:
    host = target.host
    short = host.is_name and "." in host.text and target.port in WEB_PORTS
    entry = host.text if short else str(target)
    return (
        f'To allow it, call session.network.allow("{entry}", for_s=600), or add "{entry}" to the network '
        "policy of the session or its environment."
    )


def _listed(entries: Sequence[str]) -> str:
    more = len(entries) - MAX_SHOWN_ENTRIES
    return ", ".join(entries[:MAX_SHOWN_ENTRIES]) + (f" and {more} more" if more > 0 else "")
