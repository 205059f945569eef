"""Works off a durable queue in the background, and tries again what fails for as long as it takes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

import structlog

from sandlot.domain.errors import SandlotError

log = structlog.get_logger("sandlot.retried_work")

# Seconds before failed work is tried again: the first time, and at most.
RETRY_S: Final = 5.0
MAX_RETRY_S: Final = 600.0
# Seconds between two looks at the queue if nothing says that it has changed.
LOOK_EVERY_S: Final = 60.0
_LOOKED_AT: Final = 1000


class Job(Protocol):
    """``key``: of the job. ``lane``: of two jobs in one, only one runs at a time."""

    @property
    def key(self) -> str: ...
    @property
    def lane(self) -> str: ...


J = TypeVar("J", bound=Job)


@dataclass(frozen=True, slots=True)
class Failure:
    lane: str
    count: int
    message: str
    retry_at: float


class RetriedWork(Generic[J]):
    """``due``: the first jobs of the queue, so many. ``do``: does one, and takes it from the queue.

    ``before`` and ``after``: run before and after each look at the queue; an error of theirs is the whole
    work's ``problem``. ``at_once``: how many jobs run at the same time.
    """

    def __init__(
        self,
        name: str,
        due: Callable[[int], Awaitable[Sequence[J]]],
        do: Callable[[J], Awaitable[None]],
        *,
        before: Callable[[], Awaitable[object]],
        after: Callable[[], Awaitable[object]] | None = None,
        at_once: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._name = name
        self._due = due
        self._do = do
        self._before = before
        self._after = after
        self._at_once = at_once
        self._clock = clock
        self._woken = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None
        self._busy: dict[str, asyncio.Task[None]] = {}  # by lane
        self.failures: dict[str, Failure] = {}  # by the job's key
        self.problem: str | None = None

    def start(self) -> None:
        self._loop = asyncio.create_task(self._run(), name=self._name)

    async def close(self) -> None:
        tasks = [*self._busy.values(), *([] if self._loop is None else [self._loop])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def wake(self) -> None:
        """Look at the queue soon, because something was added."""
        self._woken.set()

    @property
    def latest_failure(self) -> str | None:
        if not self.failures:
            return None
        return max(self.failures.values(), key=lambda failure: failure.retry_at).message

    async def _run(self) -> None:
        while True:
            self._woken.clear()
            wait_s = RETRY_S
            try:
                await self._before()
                wait_s = await self._start_due()
                self.problem = None
                if self._after is not None:
                    await self._after()
            except SandlotError as error:
                if self.problem != error.message:
                    log.warning(
                        "background work cannot go on; will retry", work=self._name, error=error.message
                    )
                self.problem = error.message
            except Exception:
                log.exception("background work failed; will retry", work=self._name)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._woken.wait()

    async def _start_due(self) -> float:
        """Start what is due. Returns the seconds until something else may be."""
        now, wait_s = self._clock(), LOOK_EVERY_S
        for job in await self._due(_LOOKED_AT):
            failure = self.failures.get(job.key)
            if failure is not None and failure.retry_at > now:
                wait_s = min(wait_s, failure.retry_at - now)
            elif job.lane not in self._busy and len(self._busy) < self._at_once:
                task = asyncio.create_task(self._try(job), name=f"{self._name} {job.key}")
                self._busy[job.lane] = task
                task.add_done_callback(lambda _, lane=job.lane: self._done(lane))  # type: ignore[misc]
        return max(wait_s, 0.01)

    def _done(self, lane: str) -> None:
        del self._busy[lane]
        self._woken.set()

    async def _try(self, job: J) -> None:
        try:
            await self._do(job)
        except Exception as error:
            expected = isinstance(error, SandlotError)
            message = error.message if isinstance(error, SandlotError) else "See the worker's log."
            log.warning("cannot do it yet; will retry", work=self._name, job=job.key, exc_info=not expected)
            before = self.failures.get(job.key)
            count = 1 if before is None else before.count + 1
            pause_s = min(RETRY_S * 2 ** min(count - 1, 20), MAX_RETRY_S)
            self.failures[job.key] = Failure(job.lane, count, message, self._clock() + pause_s)
        else:
            self.failures.pop(job.key, None)
