"""What a policy says about a connection, in words that a program's author or a model can act on. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sandlot.domain.network.hosts import Target
from sandlot.domain.network.presets import PRESETS
from sandlot.domain.network.rules import WEB_PORTS, Rule

MAX_SHOWN_ENTRIES: Final = 8
# A tool that needs one host of a registry soon needs the others.
_PRESET_OF: Final = {host: name for name in reversed(list(PRESETS)) for host in PRESETS[name]}


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
    entry: what to allow so that it is made; empty if no session can be allowed it.
    """

    target: str
    rule: str
    why: str
    ask: str
    entry: str = ""

    @property
    def text(self) -> str:
        """What the program inside reads."""
        return f"Sandlot denied the connection to {self.target}.\nRule: {self.rule}. {self.why}\n{self.ask}\n"

    @property
    def line(self) -> str:
        """The same in one line, for tools that show no more."""
        return f"Sandlot denied {self.target} ({self.rule}). {self.ask}"


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
    entry = _entry_for(target)
    return Denied(
        target=str(target),
        rule="not allowed",
        why=why,
        ask=(
            f'To allow it, call session.network.allow("{entry}", for_s=600), or add "{entry}" to the network '
            "policy of the session or its environment."
        ),
        entry=entry,
    )


def _entry_for(target: Target) -> str:
    host = target.host
    short = host.is_name and "." in host.text and target.port in WEB_PORTS
    return _PRESET_OF.get(host.text, host.text) if short else str(target)


def _listed(entries: Sequence[str]) -> str:
    more = len(entries) - MAX_SHOWN_ENTRIES
    return ", ".join(entries[:MAX_SHOWN_ENTRIES]) + (f" and {more} more" if more > 0 else "")
