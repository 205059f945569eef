"""Records the use of keys and refused requests in the history, in bounded numbers.

Whoever calls a server decides how many requests it refuses. So refusals of one kind are counted together, and
their number in the history does not grow with the number of requests.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from starlette.types import Scope

from sandlot.domain.callers.principal import Principal
from sandlot.domain.history.events import SERVER_TENANT, EventKind
from sandlot.domain.history.recorder import Recorder

REFUSALS: Final = frozenset({401, 403, 429})
# The first refusal of a kind is recorded at once. Those that follow within this time are one event.
COUNTED_TOGETHER_S: Final = 60.0
# Addresses that are told apart at a time. The refusals of all others are counted together.
MAX_ADDRESSES: Final = 20
# Kinds of refusals at a time, over all keys.
MAX_COUNTS: Final = 1000
# A key's use is recorded at most this often.
KEY_USE_EVERY_S: Final = 3600.0
MAX_KEYS: Final = 100_000


@dataclass(frozen=True, slots=True)
class _Refused:
    """What refusals that are counted together have in common."""

    status: int
    principal: Principal | None
    address: str


class RequestAudit:
    def __init__(self, recorder: Recorder, clock: Callable[[], float] = time.monotonic) -> None:
        self._recorder = recorder
        self._clock = clock
        self._used_at: dict[str, float] = {}
        self._counts: dict[_Refused, int] = {}  # refusals after the first

    def observe(self, scope: Scope, status: int, route: str) -> None:
        """Look at a request that was answered with this status."""
        principal: Principal | None = scope["state"].get("principal")
        if principal is not None and principal.key_id:
            self._key_used(principal)
        if status in REFUSALS and self._recorder.on:
            self._refused(principal, status, scope, route)

    def _key_used(self, principal: Principal) -> None:
        now = self._clock()
        if now - self._used_at.get(principal.key_id, -KEY_USE_EVERY_S) < KEY_USE_EVERY_S:
            return
        if len(self._used_at) >= MAX_KEYS:
            del self._used_at[next(iter(self._used_at))]
        self._used_at.pop(principal.key_id, None)
        self._used_at[principal.key_id] = now
        self._recorder.record(EventKind.KEY_USED, tenant=principal.tenant, caller=principal)

    def _refused(self, principal: Principal | None, status: int, scope: Scope, route: str) -> None:
        # A caller that is known is told apart by its key, any other by its address.
        client = scope.get("client")
        address = client[0] if client and principal is None else ""
        refused = _Refused(status, principal, address)
        if refused in self._counts:
            self._counts[refused] += 1
            return
        others = sum(each.principal is None for each in self._counts)
        if len(self._counts) >= MAX_COUNTS or (principal is None and others >= MAX_ADDRESSES):
            refused = _Refused(status, None, "others")
            if refused in self._counts:
                self._counts[refused] += 1
                return
        self._counts[refused] = 0
        self._record(refused, 1, route)
        asyncio.get_running_loop().call_later(COUNTED_TOGETHER_S, self._record_rest, refused)

    def _record_rest(self, refused: _Refused) -> None:
        count = self._counts.pop(refused)
        if count:
            self._record(refused, count, None)

    def _record(self, refused: _Refused, count: int, route: str | None) -> None:
        principal = refused.principal
        details = {
            "status": refused.status,
            "count": count,
            "address": refused.address or None,
            "route": route,
        }
        self._recorder.record(
            EventKind.REQUEST_REFUSED,
            details=details,
            tenant=SERVER_TENANT if principal is None else principal.tenant,
            caller=principal,
        )
