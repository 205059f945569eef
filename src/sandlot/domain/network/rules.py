"""Rules of an egress policy, and how each is written. Pure.

example.com          this name, on ports 80 and 443
*.example.com        every name below it, and not example.com itself
db.example.com:5432  this port and no other; any protocol may be spoken there
93.184.216.34        this address; addresses that are not listed are refused
pypi                 a preset: the hosts of a registry
public               every name
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv6Address
from typing import Any, Final

from sandlot.domain.errors import InvalidRequest
from sandlot.domain.network.addresses import Address, embedded_v4
from sandlot.domain.network.hosts import Host, Target, address_host, parse_host, parse_port, shown
from sandlot.domain.network.presets import PRESETS
from sandlot.domain.text.suggestions import did_you_mean

PUBLIC: Final = "public"
WEB_PORTS: Final = (80, 443)
MAX_ENTRY_CHARS: Final = 300


@dataclass(frozen=True, slots=True)
class Rule:
    """One host, or many.

    entry: what the policy says, for messages. Of a preset, its name.
    host: None for every name.
    below: whether it is about the names below ``host`` and not about ``host``.
    port: None for the ports of the web in a rule that allows, and for all ports in one that denies.
    """

    entry: str
    host: Host | None = None
    below: bool = False
    port: int | None = None

    def is_about(self, host: Host) -> bool:
        if self.host is None:
            return host.is_name
        if self.below:
            return host.is_name and host.text.endswith(f".{self.host.text}")
        return host == self.host

    def allows(self, target: Target) -> bool:
        ports = WEB_PORTS if self.port is None else (self.port,)
        return target.port in ports and self.is_about(target.host)

    def denies(self, target: Target) -> bool:
        return self.port in (None, target.port) and self.is_about(target.host)

    def denies_address(self, address: Address, port: int) -> bool:
        """Whether it denies an address that a name resolved to."""
        return any(
            self.denies(Target(address_host(each), port))
            for each in (address, embedded_v4(address))
            if each is not None
        )

    def includes(self, other: Rule) -> bool:
        """Whether this rule allows everything that the other one allows."""
        ports = (None, *WEB_PORTS) if self.port is None else (self.port,)
        if other.port not in ports:
            return False
        if other.host is None:
            return self.host is None
        if self.below and other.below and self.host == other.host:
            return True
        return self.is_about(other.host) and (not other.below or self.below or self.host is None)


def parse_rules(entry: Any) -> tuple[Rule, ...]:
    """What one entry of a list says: one rule, or those of a preset."""
    if not isinstance(entry, str) or not 0 < len(entry) <= MAX_ENTRY_CHARS:
        raise InvalidRequest(
            f"{shown(str(entry))} is not a host. An entry is text of 1-{MAX_ENTRY_CHARS} characters, such as "
            "example.com, *.example.com, db.example.com:5432 or pypi."
        )
    if entry == PUBLIC:
        return (Rule(PUBLIC),)
    if entry in PRESETS:
        return tuple(_parse_rule(host, entry) for host in PRESETS[entry])
    return (_parse_rule(entry, entry),)


@lru_cache(maxsize=1024)
def rules_of(entries: tuple[str, ...]) -> tuple[Rule, ...]:
    """What a list of entries says. Kept, because each connection asks anew."""
    return tuple(rule for entry in entries for rule in parse_rules(entry))


def _parse_rule(text: str, entry: str) -> Rule:
    if "/" in text or "@" in text:
        raise InvalidRequest(
            f"{shown(text)} is not a host. Write the host alone, without a scheme or a path."
        )
    if text.startswith("*") and not text.startswith("*."):
        raise InvalidRequest(
            f"{shown(text)} is not a host. Write *.example.com for all names below a name, or public for "
            "every name."
        )
    below = text.startswith("*.")
    rest = text[2:] if below else text
    port: int | None = None
    if rest.count(":") == 1 or "]:" in rest:
        rest, _, port_text = rest.rpartition(":")
        port = parse_port(port_text)
    host = parse_host(f"[{rest}]" if rest.count(":") > 1 and not rest.startswith("[") else rest)
    if host.is_name:
        if port is None and not below and "." not in host.text:
            known = (*PRESETS, PUBLIC)
            raise InvalidRequest(
                f"Unknown preset {shown(text)}.{did_you_mean(host.text, known)} Presets are: "
                f"{', '.join(known)}. If it is a host without a dot, write its port too: {host}:443."
            )
    elif below:
        raise InvalidRequest(f"{shown(text)} is not a host: nothing is below an address.")
    else:
        _check_spelling(rest, host)
    return Rule(entry, host, below, port)


def _check_spelling(text: str, host: Host) -> None:
    """A policy is read by people too, so an address has one spelling in it: 127.1 is 127.0.0.1."""
    written = text.removeprefix("[").removesuffix("]")
    if not isinstance(host.address, IPv6Address) and written != host.text:
        raise InvalidRequest(f"{shown(text)} is the address {host}. Write it so.")
