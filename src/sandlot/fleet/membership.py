"""A worker as a member of a fleet: it joins, says that it lives and what room it has, and records its
sessions.

The directory may be away: the worker serves on, and makes up for it later. A lease that was over, as after a
machine slept, means that another worker may have taken sessions over: ``confirm`` lets no call through before
that is known.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import structlog

from sandlot.domain.errors import Conflict, SandlotError, Unavailable
from sandlot.domain.session import Session
from sandlot.fleet.contact import Contact, pause_after
from sandlot.fleet.directory import Beat, Directory, Fenced, Lease, Room, WorkerCard, WorkerReport
from sandlot.fleet.identity import Identity
from sandlot.fleet.member import Member
from sandlot.fleet.recorder import Recorder

log = structlog.get_logger("sandlot.membership")

# Seconds that a start waits for the directory; after that the worker serves what it has, and goes on trying.
JOIN_WITHIN_S = 10.0
# Seconds that a call waits until it is known whose its session is.
CONFIRM_WITHIN_S = 5.0
# Reports within one lease, as the directory's contract says.
REPORTS_PER_LEASE = 3
# Seconds between two looks at the worker's own room, and between two reports because it has changed: the
# directory counts what it sends here by itself, but not what was warmed up or ended since.
LOOK_EVERY_S = 0.1
REPORT_CHANGES_EVERY_S = 0.25
SWEEP_EVERY_S = 30.0
TELL_ACTIVITY_EVERY_S = 15.0
# Of what an operator should look at, so much is reported; the worker's own health tells the rest.
PROBLEMS = 5
PROBLEM_CHARS = 300
# Seconds that closing waits for what has still to be recorded.
FLUSH_WITHIN_S = 2.0
CANCEL_AGAIN_S = 0.2


def clock_with_sleep() -> float:
    """Seconds since the machine started; unlike the monotonic clock it goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Membership:
    """The registrar of a worker. ``lock`` before the worker opens, ``close`` after it has closed."""

    def __init__(
        self,
        directory: Directory,
        card: WorkerCard,
        folder: Path,
        *,
        keys: tuple[str, ...] = (),
        clock: Callable[[], float] = clock_with_sleep,
    ) -> None:
        """``keys``: fingerprints of those that it has (``SigningKeys``), for its coordinators to compare."""
        self._directory = directory
        self._card = card
        self._lease_s = directory.timings.lease_s
        self._identity = Identity(folder)
        self._contact = Contact(self._lease_s, clock)
        self._recorder = Recorder(directory, self._contact, self._identity)
        self._keys = keys
        self._clock = clock
        self._reported: WorkerReport | None = None
        self._reported_at = 0.0
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def joined(self) -> bool:
        return self._contact.lease is not None

    @property
    def fenced(self) -> bool:
        """Another process is this worker now: this one must stop."""
        return self._contact.fenced is not None

    async def until_fenced(self) -> None:
        while self._contact.fenced is None:
            await self._contact.news()

    @property
    def problem(self) -> str | None:
        return self._contact.problem

    # --- life ---------------------------------------------------------------------------------

    def lock(self) -> None:
        """``Conflict`` if another process works in the same folder."""
        self._identity.claim()

    async def start(self, member: Member) -> None:
        """``Conflict`` if another process is alive under the same id."""
        self._recorder.member = member
        await self._join_first()
        self._run(self._keep_lease(), "keep the lease")
        self._run(self._recorder.run(), "record sessions")
        self._run(self._sweep(), "sweep the directory")
        self._run(self._tell_activity(), "tell which sessions are used")

    def _run(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._tasks.append(asyncio.create_task(work, name=name))

    async def close(self) -> None:
        """Says what is left to say, and leaves. The sessions stay on record: the worker comes back for
        them.
        """
        await self._recorder.flush(FLUSH_WITHIN_S)
        while running := [task for task in self._tasks if not task.done()]:
            # More than once: a cancellation that meets the end of a Redis call may be swallowed by it.
            for task in running:
                task.cancel()
            await asyncio.wait(running, timeout=CANCEL_AGAIN_S)
        lease = self._contact.lease
        if lease is not None:
            with contextlib.suppress(SandlotError):
                await self._directory.leave(lease)
        await asyncio.to_thread(self._identity.release)

    async def _join_first(self) -> None:
        deadline = time.monotonic() + JOIN_WITHIN_S
        failures = 0
        while True:
            try:
                await self._speak()
            except (Unavailable, Fenced) as error:
                failures += 1
                pause = self._pause(failures)
                if time.monotonic() + pause > deadline:
                    log.warning("not in the fleet yet; the worker goes on trying", error=error.message)
                    return
                await asyncio.sleep(pause)
            else:
                return

    # --- the registrar of the worker ----------------------------------------------------------

    def opening(self, session_id: str, *, new: bool) -> AbstractContextManager[None]:
        return self._recorder.opening(session_id, new=new)

    async def opened(self, session: Session, key: str | None, reservation: str | None) -> None:
        await self._recorder.opened(session, key, reservation)

    async def changed(self, session: Session, key: str | None) -> None:
        await self._recorder.changed(session, key)

    # --- before each call ---------------------------------------------------------------------

    async def confirm(self) -> None:
        """Returns once the worker may take its sessions for its own. Costs nothing while it speaks to the
        directory; lets calls through while the directory is out of reach.
        """
        if self._contact.in_doubt:
            try:
                async with asyncio.timeout(CONFIRM_WITHIN_S):
                    while self._contact.in_doubt:
                        # Otherwise it is the recording that is waited for, which reports do not hasten.
                        if self._contact.overdue:
                            self._contact.hurry.set()
                        await self._contact.news()
            except TimeoutError:
                raise Unavailable(
                    "this worker was away and does not know yet which sessions are still its own; retry",
                    retry_after_s=1.0,
                    details={"reason": "in_doubt"},
                ) from None
        if self._contact.fenced is not None:
            raise Unavailable(
                f"this process is no longer a worker of the fleet: {self._contact.fenced}",
                retry_after_s=1.0,
                details={"reason": "fenced"},
            )

    # --- saying that it lives -----------------------------------------------------------------

    async def _keep_lease(self) -> None:
        failures = 0
        while self._contact.fenced is None:
            await self._rest(failures)
            try:
                await self._speak()
                failures = 0
            except (Unavailable, Fenced):
                failures += 1
            except Conflict as error:
                self._contact.fence(error.message)
            except Exception:
                log.exception("the lease could not be kept")
                failures += 1

    def _pause(self, failures: int) -> float:
        """At most until the next report is due."""
        return pause_after(failures, self._lease_s / REPORTS_PER_LEASE)

    async def _rest(self, failures: int) -> None:
        """Until the next report is due: by the time, because somebody waits, or because there is news. After
        a failure news must wait.
        """
        seconds = self._pause(failures) if failures else self._lease_s / REPORTS_PER_LEASE
        until = self._clock() + seconds
        while self._clock() < until and (failures or not self._worth_telling()):
            try:
                async with asyncio.timeout(min(LOOK_EVERY_S, seconds)):
                    await self._contact.hurry.wait()
            except TimeoutError:
                continue
            break
        self._contact.hurry.clear()

    def _worth_telling(self) -> bool:
        if self._clock() - self._reported_at < REPORT_CHANGES_EVERY_S:
            return False
        return self._report() != self._reported

    def _report(self) -> WorkerReport:
        condition = self._recorder.member.condition()
        return WorkerReport(
            room={name: Room(warm, free) for name, (warm, free) in self._recorder.member.room().items()},
            sessions=self._recorder.member.session_count,
            draining=self._recorder.member.draining,
            complete=self._recorder.complete and self._recorder.member.is_open,
            machine=condition.use,
            keys=self._keys,
            problems=tuple(f"{problem:.{PROBLEM_CHARS}}" for problem in condition.problems[:PROBLEMS]),
        )

    async def _speak(self) -> None:
        """One report, and before it a join where there is no lease. ``Conflict``: another process is alive
        under this id.
        """
        sent_at = self._clock()
        try:
            beat = await self._send()
        except Fenced as error:
            self._contact.refused(self._contact.lease, error)
            raise
        except Conflict:
            raise
        except Exception as error:
            # Also what nobody has thought of is no reason to stop serving.
            self._contact.failed(sent_at, str(error))
            raise
        if self._contact.heard(sent_at, beat):
            self._recorder.record_all()
        self._recorder.wake()

    async def _send(self) -> Beat:
        lease = self._contact.lease
        if lease is not None:
            try:
                return await self._told(lease)
            except Fenced as error:
                if error.replaced:
                    raise
                self._contact.refused(lease, error)
        lease = await self._directory.join(self._card, self._identity.token, last_epoch=self._identity.epoch)
        await asyncio.to_thread(self._identity.keep_epoch, lease.epoch)
        self._contact.joined(lease)
        self._recorder.record_all()
        log.info("joined the fleet", worker=lease.worker_id, epoch=lease.epoch)
        return await self._told(lease)

    async def _told(self, lease: Lease) -> Beat:
        report = self._report()
        beat = await self._directory.report(lease, report)
        self._reported, self._reported_at = report, self._clock()
        return beat

    async def _tell_activity(self) -> None:
        while self._contact.fenced is None:
            await asyncio.sleep(TELL_ACTIVITY_EVERY_S)
            if self._contact.reachable and self._recorder.member.is_open:
                self._recorder.tell_activity()

    async def _sweep(self) -> None:
        while self._contact.fenced is None:
            await asyncio.sleep(SWEEP_EVERY_S * random.uniform(0.5, 1.5))  # noqa: S311
            if self._contact.reachable:
                try:
                    await self._directory.sweep()
                except SandlotError as error:
                    log.info("the directory was not swept", error=error.message)
                except Exception:
                    log.exception("the directory was not swept")
