"""The warm sandboxes of one environment. Each is claimed once, replaced, and never handed out
twice.

``domain.capacity.pool`` decides how many to make and when. This module makes, counts and hands them
over. A sandbox is ready when its agent has answered. A request's variables and limits are set after
the claim, so any request can get a warm sandbox.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from statistics import median

import structlog

from sandlot.domain.capacity import pool as policy
from sandlot.domain.capacity.pool import Demand, Occupancy, PoolStats, Target
from sandlot.domain.capacity.readiness import ReadinessState
from sandlot.domain.environment import Environment, Recipe
from sandlot.domain.errors import EngineProblem, ImageMissing, SandlotError, StorageFull, Unavailable
from sandlot.domain.metrics.figures import Figures
from sandlot.domain.metrics.table import POOL_CLAIM_SECONDS, SANDBOX_MAKE_SECONDS, SANDBOXES_MADE
from sandlot.providers.base import Sandbox
from sandlot.worker.options import WorkerOptions
from sandlot.worker.pool.fair_queue import FairQueue
from sandlot.worker.refusals import stopping

log = structlog.get_logger("sandlot.pool")

# How many claims the median latency covers.
REMEMBERED_CLAIMS = 256
# Weight of each new measurement in the moving average of the time that it takes to make a sandbox.
REFILL_SHARE = 0.2
FIRST_REFILL_GUESS_S = 0.5
CLOSE_WITHIN_S = 30.0

Make = Callable[[Environment], Awaitable[Sandbox]]
Prepare = Callable[[Environment], Awaitable[None]]
Discard = Callable[[Sandbox], Awaitable[None]]


async def _nothing(_: Environment) -> None:
    pass


class WarmPool:
    """``slots`` limits how many sandboxes are made at once, over all the worker's pools. ``prepare`` is
    called before, without a slot: it may take minutes.
    """

    def __init__(
        self,
        recipe: Recipe,
        options: WorkerOptions,
        *,
        make: Make,
        discard: Discard,
        slots: asyncio.Semaphore,
        prepare: Prepare = _nothing,
        figures: Figures | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.recipe = recipe
        self._options = options
        self._make = make
        self._discard = discard
        self._slots = slots
        self._prepare = prepare
        self._figures = figures or Figures()
        self._clock = clock
        self._ready: deque[Sandbox] = deque()
        self._queue: FairQueue[Sandbox] = FairQueue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._making = 0
        self._demand = Demand()
        self._target = policy.target(recipe.pool, 0, FIRST_REFILL_GUESS_S, 0.0)
        self._target_at = -1.0
        self._refill_s = FIRST_REFILL_GUESS_S
        self._last_claim = clock() - policy.QUIET_S
        self._hits = 0
        self._misses: Counter[str] = Counter()
        self._claim_ms: deque[float] = deque(maxlen=REMEMBERED_CLAIMS)
        self._made_one = False
        self._failures = 0
        self._last_failure: SandlotError | None = None
        self._retry_at = 0.0
        self._wake: asyncio.TimerHandle | None = None
        self._closed = False

    # --- claiming -----------------------------------------------------------------------------

    async def claim(self, tenant: str) -> Sandbox:
        """Take a sandbox that no one has used before.

        ``Unavailable`` after the queue's deadline.
        """
        began = self._clock()
        self._last_claim = began
        self._demand.record_claim(began)
        while self._ready:
            sandbox = self._ready.popleft()
            if sandbox.lost:
                self._misses["warm_died"] += 1
                self._start_task(self._discard(sandbox))
                continue
            self._hits += 1
            self._rebalance()
            self._record_claim(began)
            return sandbox
        self._misses["pool_empty"] += 1
        try:
            return await self._wait(tenant)
        finally:
            self._record_claim(began)

    def _record_claim(self, began: float) -> None:
        seconds = self._clock() - began
        self._claim_ms.append(seconds * 1000)
        self._figures.observe(POOL_CLAIM_SECONDS, seconds, self.recipe.environment.name)

    def record_miss(self, reason: str) -> None:
        """Count a create that this pool could not serve, or whose sandbox turned out to be dead."""
        self._misses[reason] += 1

    async def _wait(self, tenant: str) -> Sandbox:
        if self._closed:
            raise stopping()
        self._refuse_if_broken()
        if len(self._queue) >= self._options.max_waiting:
            raise self._retry_later("too many requests for a sandbox are already waiting")
        waiter = self._queue.join(tenant)
        self._rebalance()
        try:
            async with asyncio.timeout(self._options.queue_timeout_s):
                return await asyncio.shield(waiter)
        except BaseException as error:
            self._take_back(waiter)
            if isinstance(error, TimeoutError):
                seconds = self._options.queue_timeout_s
                if not self._made_one:
                    raise self._first_takes_long(seconds) from None
                raise self._retry_later(f"no sandbox became available within {seconds:g} s") from None
            raise
        finally:
            self._queue.leave(tenant, waiter)

    def _take_back(self, waiter: asyncio.Future[Sandbox]) -> None:
        """Return a sandbox to the pool if its waiter had just given up: it is still unused."""
        if not waiter.done():
            waiter.cancel()
        elif not waiter.cancelled() and waiter.exception() is None:
            self._offer(waiter.result())

    def _retry_later(self, why: str) -> Unavailable:
        behind = len(self._queue) + 1
        wait = max(1.0, behind * self._refill_s / self._options.create_concurrency)
        return Unavailable(
            f"Environment {self.recipe.environment.name}: {why}. Retry, enlarge the pool, or add a worker.",
            # Jitter, so that clients that were refused together do not retry together.
            retry_after_s=round(min(60.0, wait) * random.uniform(0.75, 1.25), 1),  # noqa: S311
            details={"reason": "queue"},
        )

    def _first_takes_long(self, seconds: float) -> Unavailable:
        return Unavailable(
            f"Environment {self.recipe.environment.name}: its first sandbox was not ready within "
            f"{seconds:g} s. A large image or a set-up script takes a while, once. Retry later: it continues "
            "in the background. Or let creates wait longer with SANDLOT_QUEUE_TIMEOUT_S.",
            retry_after_s=round(max(1.0, seconds) * random.uniform(0.75, 1.25), 1),  # noqa: S311
            details={"reason": "queue"},
        )

    @property
    def broken(self) -> bool:
        """Whether making failed and the retry is not due yet.

        Until then only ready sandboxes are available.
        """
        return self._clock() < self._retry_at and self._last_failure is not None and self._making == 0

    @property
    def readiness(self) -> tuple[ReadinessState, str] | None:
        """How making goes, with the last failure in words. None if nothing was tried yet."""
        if self._failures and self._last_failure is not None:
            missing = isinstance(self._last_failure, ImageMissing)
            return (ReadinessState.MISSING if missing else ReadinessState.FAILING), self._last_failure.message
        if self._made_one:
            return ReadinessState.READY, ""
        return (ReadinessState.PREPARING, "") if self._making else None

    @property
    def out_of_space(self) -> bool:
        """Whether making fails because the engine's disk is full."""
        return bool(self._failures) and isinstance(self._last_failure, StorageFull)

    def _refuse_if_broken(self) -> None:
        if self.broken and self._last_failure is not None:
            raise self._broken_error(self._last_failure)

    def _broken_error(self, failure: SandlotError) -> Unavailable:
        wait = max(0.5, self._retry_at - self._clock())
        return Unavailable(
            f"Cannot create sandboxes for environment {self.recipe.environment.name}: {failure.message}",
            retryable=failure.retryable,
            retry_after_s=round(wait * random.uniform(1.0, 1.25), 1),  # noqa: S311
            details={"reason": "environment_broken", "cause": failure.code},
        )

    # --- keeping it filled --------------------------------------------------------------------

    def fill(self) -> None:
        """Make missing sandboxes and drop dead or surplus ones. The reaper calls this regularly."""
        for sandbox in [sandbox for sandbox in self._ready if sandbox.lost]:
            self._ready.remove(sandbox)
            self._start_task(self._discard(sandbox))
        self._rebalance()

    def _rebalance(self) -> None:
        if self._closed:
            return
        now = self._clock()
        wanted = self._current_target(now).size
        quiet = now - self._last_claim >= policy.QUIET_S
        occupancy = self._occupancy()
        for _ in range(policy.to_drop(occupancy, wanted)):
            self._start_task(self._discard(self._ready.pop()))
        if now < self._retry_at:
            self._wake_in(self._retry_at - now)
            return
        missing = policy.to_make(occupancy, wanted, self.recipe.pool.min, quiet=quiet)
        # Start no more than can be made at once: a long queue here would block other environments.
        missing = min(missing, self._options.create_concurrency - self._making)
        if self._failures:
            # After a failure, one at a time until one succeeds: a broken image must not cause a
            # flood of attempts.
            missing = min(missing, 1 - min(1, self._making))
        for _ in range(missing):
            self._making += 1
            self._start_task(self._make_one())
        if not quiet:
            self._wake_in(policy.QUIET_S)

    def _wake_in(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        if self._wake is None or self._wake.cancelled() or self._wake.when() <= loop.time():
            self._wake = loop.call_later(seconds + 0.01, self._rebalance)

    async def _make_one(self) -> None:
        try:
            sandbox = await self._make_in_slot()
        except SandlotError as error:
            self._record_failure(error)
            return
        except Exception as error:  # noqa: BLE001  # a bug or a full machine: reported and retried
            self._record_failure(EngineProblem(f"{type(error).__name__}: {error}", retryable=True))
            return
        if sandbox is None:
            return
        if self._failures:
            log.info("environment works again", environment=self.recipe.environment.name)
        self._failures, self._retry_at, self._made_one = 0, 0.0, True
        self._offer(sandbox)
        self._rebalance()

    async def _make_in_slot(self) -> Sandbox | None:
        """Make a sandbox once there is a free slot; None if it is no longer needed by then.

        In every case it no longer counts in ``_making`` when this returns.
        """
        try:
            await self._prepare(self.recipe.environment)
            async with self._slots:
                if not self._still_wanted():
                    return None
                began = self._clock()
                sandbox = await self._make(self.recipe.environment)
        finally:
            self._making -= 1
        seconds, name = self._clock() - began, self.recipe.environment.name
        self._refill_s += REFILL_SHARE * (seconds - self._refill_s)
        self._figures.observe(SANDBOX_MAKE_SECONDS, seconds, name)
        self._figures.count(SANDBOXES_MADE, name, "made")
        return sandbox

    def _still_wanted(self) -> bool:
        """Whether the sandbox about to be made is still needed: the wait for a slot may have been
        long.
        """
        occupancy = self._occupancy()
        surplus = occupancy.ready + occupancy.making - occupancy.waiting
        return not self._closed and surplus <= max(self._current_target(self._clock()).size, 1)

    def _offer(self, sandbox: Sandbox) -> None:
        if self._closed:
            self._start_task(self._discard(sandbox))
        elif not self._queue.serve(sandbox):
            self._ready.append(sandbox)

    def _record_failure(self, error: SandlotError) -> None:
        self._last_failure = error
        self._figures.count(SANDBOXES_MADE, self.recipe.environment.name, "failed")
        if self._clock() >= self._retry_at:  # concurrent attempts that fail together count once
            self._failures += 1
            self._retry_at = self._clock() + policy.backoff_s(self._failures)
        log.warning(
            "cannot create a sandbox",
            environment=self.recipe.environment.name,
            error=error.message,
            failures=self._failures,
        )
        if not error.retryable or isinstance(error, StorageFull):
            # Waiting would not help. If only this disk is full, another worker can serve the
            # request.
            self._queue.fail(self._broken_error(error))
        self._rebalance()

    def _start_task(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- figures ------------------------------------------------------------------------------

    @property
    def ready(self) -> int:
        return len(self._ready)

    def _occupancy(self) -> Occupancy:
        return Occupancy(len(self._ready), self._making, len(self._queue))

    def _current_target(self, now: float) -> Target:
        """The pool's target size. Computed at most once a second, to keep claims cheap."""
        if now - self._target_at >= 1.0 or self._target_at < 0:
            self._target_at = now
            peak = self._demand.peak(now, self._refill_s)
            self._target = policy.target(self.recipe.pool, peak, self._refill_s, now - self._last_claim)
        return self._target

    def stats(self) -> PoolStats:
        target = self._current_target(self._clock())
        occupancy = self._occupancy()
        return PoolStats(
            ready=occupancy.ready,
            making=occupancy.making,
            waiting=occupancy.waiting,
            target=target.size,
            target_reason=target.reason,
            hits=self._hits,
            misses=dict(self._misses),
            claim_ms_p50=round(median(self._claim_ms), 3) if self._claim_ms else 0.0,
            suggested_size=target.suggested,
            failures=self._failures,
            last_failure=self._last_failure.message if self._last_failure and self._failures else "",
        )

    async def close(self, refusal: Unavailable | None = None) -> None:
        """Remove all warm sandboxes: the next process does not adopt them.

        ``refusal``: what those who wait for a sandbox get; by default, that the server is stopping.
        """
        self._closed = True
        if self._wake is not None:
            self._wake.cancel()
        self._queue.fail(refusal or stopping())
        while self._ready:
            self._start_task(self._discard(self._ready.popleft()))
        if self._tasks:
            # If the engine hangs, unfinished removals are on record, and the next start finishes
            # them.
            await asyncio.wait(set(self._tasks), timeout=CLOSE_WITHIN_S)
