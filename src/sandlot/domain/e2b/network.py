"""What E2B's SDK asks of a sandbox's network, as an egress policy.

E2B allows everything unless it is denied, and what is allowed wins. Here everything is denied unless it is
allowed, and what is denied wins. Most of what is asked for means the same in both. The rest is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sandlot.domain.errors import InvalidRequest
from sandlot.domain.network.policy import EgressPolicy
from sandlot.domain.network.rules import PUBLIC

ALL_TRAFFIC: Final = "0.0.0.0/0"


def egress_of(
    internet: bool | None, allow_out: Sequence[str] | None, deny_out: Sequence[str] | None
) -> EgressPolicy | None:
    """The policy; None if nothing was asked for, so that the environment's own holds."""
    allow, deny = list(allow_out or ()), list(deny_out or ())
    if internet is None and allow_out is None and deny_out is None:
        return None
    if internet is False or ALL_TRAFFIC in deny:
        return EgressPolicy(allow=tuple(_entry(each) for each in allow if each != ALL_TRAFFIC))
    if deny and any(each != ALL_TRAFFIC for each in allow):
        raise InvalidRequest(
            "denyOut wins over allowOut here, so only one of them can be given, unless denyOut has "
            f"{ALL_TRAFFIC}: then allowOut says what is reached."
        )
    return EgressPolicy(
        allow=(PUBLIC, *(_entry(each) for each in allow if each != ALL_TRAFFIC)),
        deny=tuple(_entry(each) for each in deny),
    )


def _entry(text: str) -> str:
    """One address may be written as a network with nothing else in it."""
    address, slash, bits = text.partition("/")
    if not slash:
        return text
    if (":" in address and bits == "128") or (":" not in address and bits == "32"):
        return address
    raise InvalidRequest(
        f"{text!r:.80} is a range of addresses. An egress policy has names and single addresses; only "
        f"{ALL_TRAFFIC} is known beside them."
    )


def denies_everything(policy: EgressPolicy) -> bool:
    return not policy.allow
