"""Counts each request against its caller's rate, and tells the caller what is left of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from sandlot.domain.callers.limits import Allowance, AllowancesOf, too_many_calls
from sandlot.domain.callers.principal import Principal, Scope
from sandlot.domain.callers.rates import Rate, Rates, Taken
from sandlot.domain.errors import Busy

Headers = list[tuple[bytes, bytes]]

# The names of limits in the headers, by the kind of holder.
_NAMES: Final = {"t": "tenant", "k": "key"}


class CallLimits:
    """``rates`` counts, for this process or for a whole fleet."""

    def __init__(self, allowances: AllowancesOf, rates: Rates) -> None:
        self._allowances = allowances
        self._rates = rates

    async def count(self, principal: Principal) -> tuple[Headers, Busy | None]:
        """Count one call. Returns headers for its response, and an error if the call is refused.

        The headers are those of the IETF draft "RateLimit header fields for HTTP". A coordinator counts the
        calls that it passes on, so its workers do not. Operators are not counted: they must be able to
        revoke a key or raise a limit while its holder floods the server.
        """
        if principal.forwarded or not principal.tenant or principal.may(Scope.FLEET_OPERATE):
            return [], None
        limited = [
            (allowance, rate)
            for allowance in self._allowances(principal)
            if (rate := allowance.calls) is not None
        ]
        if not limited:
            return [], None
        taken = await self._rates.take([rate for _, rate in limited])
        headers = _headers(limited, taken)
        for (allowance, _), after in zip(limited, taken, strict=True):
            if after.wait_s:
                return headers, too_many_calls(allowance, after.wait_s)
        return headers, None


def _headers(limited: Sequence[tuple[Allowance, Rate]], taken: Sequence[Taken]) -> Headers:
    policies, states = [], []
    for (allowance, rate), after in zip(limited, taken, strict=True):
        name = _NAMES[allowance.holder[0]]
        window_s = math.ceil(rate.burst * rate.interval_s)
        policies.append(f'"{name}";q={rate.burst};w={window_s}')
        states.append(f'"{name}";r={after.left};t={math.ceil(after.full_in_s)}')
    return [
        (b"ratelimit-policy", ", ".join(policies).encode()),
        (b"ratelimit", ", ".join(states).encode()),
    ]
