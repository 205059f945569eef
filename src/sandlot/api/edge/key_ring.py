"""All active keys, limits and policies of a ``KeyStore`` in memory, so that no request waits for the store.

A background task asks the store for changes every second. So a key that was revoked anywhere is refused here
a second later. While the store cannot be reached, the known keys go on working until they expire.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final

import structlog

from sandlot.domain.background_tasks import BackgroundTasks
from sandlot.domain.callers.key_store import REMEMBER_ENDED_S, KeyStore
from sandlot.domain.callers.keys import ApiKey, opens, parse_key
from sandlot.domain.callers.limits import NO_LIMITS, Allowance, CallerLimits, key_holder, tenant_holder
from sandlot.domain.callers.principal import Principal
from sandlot.domain.errors import SandlotError, Unauthorized, Unavailable

log = structlog.get_logger("sandlot.keys")

REFRESH_EVERY_S: Final = 1.0
# The least time between two refreshes for unknown keys. A client that guesses costs the store no more.
REFRESH_AT_MOST_EVERY_S: Final = 0.2
RECORD_USE_EVERY_S: Final = 30.0
FORGET_EVERY_S: Final = 3600.0
# For how long requests of an ended key are ended again, in case one has swallowed its cancellation.
END_AGAIN_FOR_S: Final = 60.0

Work = Callable[[], Awaitable[None]]


class KeyRing:
    """Open it before use. ``on_end`` is called with the ids of keys that were revoked or have expired, more
    than once for each. ``shared_limits``: of each tenant, where it has none of its own. ``read_only``: never
    change the store, as on a fleet's worker, whose user in Redis may not.
    """

    def __init__(
        self,
        store: KeyStore,
        *,
        shared_limits: CallerLimits = NO_LIMITS,
        read_only: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.store = store
        self._read_only = read_only
        self.shared_limits = shared_limits
        self.limits: dict[str, CallerLimits] = {}  # of tenants that have some of their own
        self.policies: dict[str, str] = {}  # of tenants that have one
        self.on_end: Callable[[Collection[str]], None] = lambda _: None
        self.clock = clock
        self._active: dict[str, ApiKey] = {}
        self._ended: dict[str, ApiKey] = {}  # as long as the store lists them
        self._ended_lately: dict[str, float] = {}  # id → when this ring learned of it
        self._next_expiry = math.inf
        self._mark = ""
        self._loaded = False
        self._failing: set[str] = set()  # background work whose failure is logged already
        self._refreshing = asyncio.Lock()
        self._refreshed_at = 0.0
        self._used_at: dict[str, float] = {}
        self._background = BackgroundTasks()

    async def open(self) -> None:
        """Load the keys and keep them fresh. If the store is unreachable, the keys come later."""
        await self._try("read", self.refresh)
        for name, work, seconds in (
            ("read", self.refresh, REFRESH_EVERY_S),
            ("record the use of", self._record_use, RECORD_USE_EVERY_S),
            ("forget ended", self._forget_ended, FORGET_EVERY_S),
        ):
            self._background.start(self._repeat(name, work, seconds), f"{name} API keys")

    async def close(self) -> None:
        await self._background.cancel()
        with contextlib.suppress(SandlotError):
            await self._record_use()

    # --- requests -----------------------------------------------------------------------------

    def admit(self, text: bytes) -> Principal | SandlotError | None:
        """Whose key this is, or why it opens nothing. Pure but for the time of the key's last use."""
        parsed = parse_key(text.decode("latin-1"))
        if parsed is None:
            return None
        key = self._active.get(parsed[0])
        if key is None or not opens(key, parsed[1]):
            if not self._loaded:
                return Unavailable(
                    "The server cannot read its keys yet. Retry.",
                    retry_after_s=1.0,
                    details={"reason": "keys"},
                )
            return Unauthorized("Invalid API key. It may have been revoked or have expired.")
        now = self.clock()
        if key.state(now) != "active":
            return Unauthorized("This API key has expired. Create a new one with `sandlot keys create`.")
        self._used_at[key.id] = now
        return key.principal

    async def may_know_later(self, text: bytes) -> bool:
        """Whether it is worth asking ``admit`` again: a key may have been created a moment ago, by another
        process. A known id with a wrong secret waits as long as an unknown one, so that ids cannot be probed.
        """
        parsed = parse_key(text.decode("latin-1"))
        if parsed is None:
            return False
        known = parsed[0] in self._active
        await self._try("read", self._refresh_soon)
        return not known and parsed[0] in self._active

    def principal_of(self, key_id: str) -> Principal | None:
        """Whom an active key belongs to, by the key's id alone; None if there is no such key."""
        key = self._active.get(key_id)
        return None if key is None or key.state(self.clock()) != "active" else key.principal

    def active_keys(self) -> list[tuple[str, str]]:
        """Of each active key the tenant and the id."""
        return [(key.tenant, key.id) for key in self._active.values()]

    def has_ended(self, key_id: str) -> bool:
        """Whether the key that a token names was revoked or has expired.

        False for an unknown key: it may be newer than the last refresh, and the token proves that it existed.
        """
        key = self._active.get(key_id)
        return key_id in self._ended if key is None else key.state(self.clock()) != "active"

    def allowances(self, principal: Principal) -> tuple[Allowance, ...]:
        """The caller's allowances: of its tenant and of its key, if they are limited."""
        limits = self.limits_of(principal.tenant)
        found = () if limits == NO_LIMITS else (Allowance(tenant_holder(principal.tenant), limits),)
        own = self.key_limits(principal.key_id)
        return found if own == NO_LIMITS else (*found, Allowance(key_holder(principal.key_id), own))

    def key_limits(self, key_id: str) -> CallerLimits:
        key = self._active.get(key_id)
        return NO_LIMITS if key is None else key.limits

    def limits_of(self, tenant: str) -> CallerLimits:
        own = self.limits.get(tenant)
        return self.shared_limits if own is None else own.or_else(self.shared_limits)

    def policy_of(self, tenant: str) -> str | None:
        """The name of the tenant's command policy. Raises ``Unavailable`` before the first load, because
        nobody knows then whether it has one.
        """
        if not self._loaded:
            raise Unavailable(
                "The server cannot read the tenants' command policies yet. Retry.",
                retry_after_s=1.0,
                details={"reason": "policies"},
            )
        return self.policies.get(tenant)

    # --- changes ------------------------------------------------------------------------------

    async def add(self, key: ApiKey) -> None:
        async with self._refreshing:
            await self.store.add(key)
            self._take([key])

    async def end(self, key_id: str, at: float, *, revoked: bool, replaced_by: str = "") -> ApiKey | None:
        """End a key as ``KeyStore.end`` does, and its requests here before this returns.

        The lock keeps the background task from ending the request that calls this.
        """
        async with self._refreshing:
            key = await self.store.end(key_id, at, revoked=revoked, replaced_by=replaced_by)
            if key is not None:
                self._take([key])
                self._tell()
        return key

    async def set_limits(self, tenant: str, limits: CallerLimits) -> None:
        async with self._refreshing:
            await self.store.set_limits(tenant, limits)
            self._take_limits({tenant: limits})

    async def set_policy(self, tenant: str, policy: str | None) -> None:
        async with self._refreshing:
            await self.store.set_policy(tenant, policy)
            self._take_policies({tenant: policy})

    # --- the store ----------------------------------------------------------------------------

    async def _refresh_soon(self) -> None:
        asked_at = time.monotonic()
        async with self._refreshing:
            if self._refreshed_at >= asked_at:
                return  # another request has just asked
            await asyncio.sleep(self._refreshed_at + REFRESH_AT_MOST_EVERY_S - time.monotonic())
            await self._load()

    async def refresh(self) -> None:
        """Learn of all changes now."""
        async with self._refreshing:
            await self._load()

    async def _load(self) -> None:
        self._refreshed_at = time.monotonic()
        try:
            self._expire()
            await self._load_changes()
        finally:
            # Also if the store fails: keys expire without it.
            self._tell()

    async def _load_changes(self) -> None:
        keys: list[ApiKey] = []
        limits: dict[str, CallerLimits] = {}
        policies: dict[str, str | None] = {}
        mark, everything = self._mark, False
        while True:
            changes = await self.store.changes(mark)
            if changes.everything:
                keys, limits, policies, everything = [], {}, {}, True
            keys += changes.keys
            limits |= changes.limits
            policies |= changes.policies
            mark = changes.mark
            if not changes.more:
                break
        if everything:
            await self._revoke_again(keys)
            for key_id in self._active.keys() - {key.id for key in keys}:
                self._note_end(self._active[key_id])
            self.limits, self.policies = {}, {}
        self._take(keys)
        self._take_limits(limits)
        self._take_policies(policies)
        self._mark, self._loaded = mark, True

    async def _revoke_again(self, keys: list[ApiKey]) -> None:
        """A store that lost its last writes may have lost a revocation that this ring has seen."""
        for place, key in enumerate(keys):
            seen = self._ended.get(key.id)
            if seen is not None and seen.revoked_at is not None and key.revoked_at is None:
                if self._read_only:  # a server with a writing ring revokes it again
                    keys[place] = seen
                    continue
                log.warning("revoking a key again: the store had lost its revocation", key=key.id)
                again = await self.store.end(
                    key.id, seen.revoked_at, revoked=True, replaced_by=seen.replaced_by
                )
                keys[place] = again or seen

    def _take(self, keys: Collection[ApiKey]) -> None:
        now = self.clock()
        for key in keys:
            if key.state(now) == "active":
                self._active[key.id] = key
                self._ended.pop(key.id, None)
                self._ended_lately.pop(key.id, None)
                self._next_expiry = min(self._next_expiry, key.expires_at or math.inf)
            elif key.id not in self._ended:
                self._note_end(key)
            else:
                self._ended[key.id] = key

    def _take_limits(self, limits: Mapping[str, CallerLimits]) -> None:
        for tenant, own in limits.items():
            if own == NO_LIMITS:
                self.limits.pop(tenant, None)
            else:
                self.limits[tenant] = own

    def _take_policies(self, policies: Mapping[str, str | None]) -> None:
        for tenant, policy in policies.items():
            if policy is None:
                self.policies.pop(tenant, None)
            else:
                self.policies[tenant] = policy

    def _note_end(self, key: ApiKey) -> None:
        """Also for a key that was never active here: a worker admits tokens of keys that it does not know."""
        self._active.pop(key.id, None)
        self._ended[key.id] = key
        self._ended_lately[key.id] = time.monotonic()

    def _expire(self) -> None:
        now = self.clock()
        if now < self._next_expiry:
            return
        expiring = [key for key in self._active.values() if key.expires_at is not None]
        for key in expiring:
            if key.state(now) != "active":
                self._note_end(key)
        self._next_expiry = min(
            (key.expires_at or math.inf for key in expiring if key.state(now) == "active"), default=math.inf
        )

    def _tell(self) -> None:
        before = time.monotonic() - END_AGAIN_FOR_S
        self._ended_lately = {key_id: at for key_id, at in self._ended_lately.items() if at > before}
        if self._ended_lately:
            self.on_end(self._ended_lately.keys())

    async def _record_use(self) -> None:
        used_at, self._used_at = self._used_at, {}
        try:
            if used_at and not self._read_only:
                await self.store.record_use(used_at)
        except BaseException:
            self._used_at = used_at | self._used_at
            raise

    async def _forget_ended(self) -> None:
        before = self.clock() - REMEMBER_ENDED_S
        if not self._read_only:
            await self.store.forget_ended(before)
        for key in list(self._ended.values()):
            if key.expires_at is not None and key.expires_at < before:
                del self._ended[key.id]

    async def _repeat(self, name: str, work: Work, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            await self._try(name, work)

    async def _try(self, name: str, work: Work) -> None:
        try:
            await work()
        except SandlotError as error:
            if name not in self._failing:
                log.warning("API keys: the known ones go on working", cannot=name, error=error.message)
            self._failing.add(name)
        except Exception:
            if name not in self._failing:
                log.exception("API keys: the known ones go on working", cannot=name)
            self._failing.add(name)
        else:
            self._failing.discard(name)
