"""A named secret and its rules: to which hosts it may go, in which field, and for whom. Pure.

The worker adds the value to a request after the request has left the sandbox. So a program can use the secret
at the hosts of its rules, and can neither read it nor send it anywhere else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sandlot.domain.callers.principal import DEFAULT_TENANT, check_tenant
from sandlot.domain.errors import InvalidRequest
from sandlot.domain.ids import is_name
from sandlot.domain.network.hosts import Target, shown
from sandlot.domain.network.presets import PRESETS
from sandlot.domain.network.rules import PUBLIC, Rule, parse_rules
from sandlot.domain.secrets.placement import Placement

TLS_PORT: Final = 443
ANY: Final = "*"
# Shorter values could stand in a command by chance, and would be masked there.
MIN_VALUE_CHARS: Final = 8
MAX_VALUE_CHARS: Final = 8192
# The history looks for each of them in each command.
MAX_SECRETS: Final = 100
MAX_ENTRIES: Final = 100  # of one list of a secret
# What an HTTP header and a URL can carry. A space at either end would be lost.
_VALUE: Final = re.compile(r"[!-~](?:[ -~]*[!-~])?")


@dataclass(frozen=True, slots=True)
class Secret:
    """hosts: names, as in an egress policy; on port 443 unless one is written.
    placement: which field of a request carries it.
    tenants: whose sessions may use it; ``*`` for all.
    environments: in which environments; ``*`` for all.
    """

    name: str
    value: str = field(repr=False)
    hosts: tuple[str, ...]
    placement: Placement
    tenants: tuple[str, ...] = (DEFAULT_TENANT,)
    environments: tuple[str, ...] = (ANY,)
    rules: tuple[Rule, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_secret_name(self.name)
        _check_value(self.value)
        _check_listed("tenants", self.tenants)
        _check_listed("environments", self.environments)
        _check_listed("hosts", self.hosts)
        for tenant in self.tenants:
            if tenant != ANY:
                check_tenant(tenant)
        for environment in self.environments:
            if environment != ANY and not is_name(environment):
                raise InvalidRequest(f"{shown(environment)} is not the name of an environment.")
        object.__setattr__(self, "rules", tuple(_rule(entry) for entry in self.hosts))

    def is_for(self, tenant: str, environment: str) -> bool:
        return _listed(tenant, self.tenants) and _listed(environment, self.environments)

    def may_go_to(self, target: Target) -> bool:
        """Only over TLS: what speaks it to which host is the caller's care."""
        return any(
            rule.is_about(target.host) and target.port == (rule.port or TLS_PORT) for rule in self.rules
        )


def check_secret_name(name: Any) -> str:
    if not isinstance(name, str) or not is_name(name):
        raise InvalidRequest(
            f"{shown(str(name))} is not a valid name of a secret. Use 1-63 lowercase letters, digits and "
            ". _ -, beginning with a letter or digit."
        )
    return name


def _check_value(value: str) -> None:
    """Says nothing of the value itself."""
    if not MIN_VALUE_CHARS <= len(value) <= MAX_VALUE_CHARS:
        raise InvalidRequest(
            f"The value of a secret has {MIN_VALUE_CHARS} to {MAX_VALUE_CHARS} characters; this one has "
            f"{len(value)}."
        )
    if _VALUE.fullmatch(value) is None:
        raise InvalidRequest(
            "The value of a secret must be printable ASCII on one line, without spaces around it. Encode "
            "other values first, for example with base64."
        )


def _check_listed(name: str, entries: Sequence[str]) -> None:
    if not 0 < len(entries) <= MAX_ENTRIES:
        raise InvalidRequest(f"A secret has 1 to {MAX_ENTRIES} {name}, not {len(entries)}.")


def _listed(name: str, entries: tuple[str, ...]) -> bool:
    return ANY in entries or name in entries


def _rule(entry: str) -> Rule:
    if entry == PUBLIC or entry in PRESETS:
        raise InvalidRequest(f"A secret goes to hosts that are named one by one, not to {entry}.")
    [rule] = parse_rules(entry)
    if rule.host is None or not rule.host.is_name:
        raise InvalidRequest(
            f"{shown(entry)} is an address. Write the name of the host: its certificate proves the name."
        )
    return rule
