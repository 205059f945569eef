"""A worker's membership in a fleet: it joins, reports that it is alive, and records its sessions.

While the directory is down, the worker keeps serving and catches up later. After its lease has
expired, for example because the machine slept, another worker may have taken sessions over.
``confirm`` holds all calls until that is known.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import structlog

from sandlot.domain.background_tasks import BackgroundTasks
from sandlot.domain.errors import Conflict, SandlotError, Unavailable
from sandlot.domain.session import Session
from sandlot.domain.volumes.volume import Volume
from sandlot.fleet.directory.contract import Directory, Fenced, ReportReply, Room, WorkerCard, WorkerReport
from sandlot.fleet.directory.lease import Lease
from sandlot.fleet.membership.contact import Contact, pause_after
from sandlot.fleet.membership.identity import Identity
from sandlot.fleet.membership.member import Member
from sandlot.fleet.membership.recorder import Recorder

log = structlog.get_logger("sandlot.membership")

# Seconds that a start waits for the directory. Then the worker serves what it has and keeps trying.
JOIN_WITHIN_S = 10.0
# Seconds that a call waits until the worker knows whether it still owns the session.
CONFIRM_WITHIN_S = 5.0
# Reports per lease, as the directory's contract requires.
REPORTS_PER_LEASE = 3
# Seconds between two checks of the worker's own room, and the least time between two reports of a
# change. The directory counts the sessions that it places here, but not sandboxes that became warm
# or sessions that ended since.
CHECK_ROOM_EVERY_S = 0.1
REPORT_CHANGES_EVERY_S = 0.25
REPORT_ACTIVITY_EVERY_S = 15.0
# The most problems to report, and characters of each. The worker's own health lists all of them.
MAX_PROBLEMS = 5
MAX_PROBLEM_CHARS = 300
# Seconds that closing waits for sessions that are not recorded yet.
FLUSH_WITHIN_S = 2.0


def boot_clock() -> float:
    """Seconds since boot. Unlike the monotonic clock, this goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Membership:
    """Implements the worker's ``Registrar``.

    Call ``lock`` before the worker opens, and ``close`` after it has closed.
    """

    def __init__(
        self,
        directory: Directory,
        card: WorkerCard,
        folder: Path,
        *,
        keys: tuple[str, ...] = (),
        clock: Callable[[], float] = boot_clock,
    ) -> None:
        """``keys``: fingerprints of the worker's ``PublicKeys``, for coordinators to compare."""
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
        self._background = BackgroundTasks()

    @property
    def joined(self) -> bool:
        return self._contact.lease is not None

    @property
    def fenced(self) -> bool:
        """Whether another process has replaced this worker. If so, this process must stop."""
        return self._contact.fenced is not None

    async def until_fenced(self) -> None:
        while self._contact.fenced is None:
            await self._contact.wait_for_change()

    @property
    def problem(self) -> str | None:
        return self._contact.problem

    # --- lifecycle ----------------------------------------------------------------------------

    def lock(self) -> None:
        """Lock the worker's folder. Raises ``Conflict`` if another process uses it."""
        self._identity.claim()

    async def start(self, member: Member) -> None:
        """Join the fleet and start the background tasks.

        Raises ``Conflict`` if another process is alive under the same id.
        """
        self._recorder.member = member
        await self._join_first()
        self._background.start(self._keep_lease(), "keep the lease")
        self._background.start(self._recorder.run(), "record sessions")
        self._background.start(self._report_activity(), "report used sessions")

    async def close(self) -> None:
        """Record what is left, and leave the fleet.

        The sessions stay recorded, because the worker may come back for them.
        """
        await self._recorder.flush(FLUSH_WITHIN_S)
        await self._background.cancel()
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
                await self._check_in()
            except (Unavailable, Fenced) as error:
                failures += 1
                pause = self._retry_pause(failures)
                if time.monotonic() + pause > deadline:
                    log.warning("not in the fleet yet; still trying", error=error.message)
                    return
                await asyncio.sleep(pause)
            else:
                return

    # --- the worker's ``Registrar`` -----------------------------------------------------------

    def opening(self, session_id: str, *, new: bool) -> AbstractContextManager[None]:
        return self._recorder.opening(session_id, new=new)

    async def opened(self, session: Session, key: str | None, reservation: str | None) -> None:
        await self._recorder.opened(session, key, reservation)

    async def changed(self, session: Session, key: str | None) -> None:
        await self._recorder.changed(session, key)

    async def name_volume(self, volume: Volume) -> None:
        await self._recorder.name_volume(volume)

    async def forget_volume(self, volume: Volume) -> None:
        await self._recorder.forget_volume(volume)

    # --- before each call ---------------------------------------------------------------------

    async def confirm(self) -> None:
        """Return once the worker knows that it owns its sessions.

        Costs nothing while the worker is in contact with the directory. Returns at once while the
        directory is unreachable.
        """
        if self._contact.in_doubt:
            try:
                async with asyncio.timeout(CONFIRM_WITHIN_S):
                    while self._contact.in_doubt:
                        # Otherwise it waits for the recording, which a report does not speed up.
                        if self._contact.overdue:
                            self._contact.report_now.set()
                        await self._contact.wait_for_change()
            except TimeoutError:
                raise Unavailable(
                    "This worker lost contact with the fleet and does not know yet which sessions are "
                    "still its own. Retry.",
                    retry_after_s=1.0,
                    details={"reason": "in_doubt"},
                ) from None
        if self._contact.fenced is not None:
            raise Unavailable(
                f"This process is no longer a worker of the fleet: {self._contact.fenced}",
                retry_after_s=1.0,
                details={"reason": "fenced"},
            )

    # --- reports ------------------------------------------------------------------------------

    async def _keep_lease(self) -> None:
        failures = 0
        while self._contact.fenced is None:
            await self._wait_until_due(failures)
            try:
                await self._check_in()
                failures = 0
            except (Unavailable, Fenced):
                failures += 1
            except Conflict as error:
                self._contact.fence(error.message)
            except Exception:
                log.exception("cannot renew the lease")
                failures += 1

    def _retry_pause(self, failures: int) -> float:
        """Return the pause after failures, at most the time between two reports."""
        return pause_after(failures, self._lease_s / REPORTS_PER_LEASE)

    async def _wait_until_due(self, failures: int) -> None:
        """Wait until the next report is due.

        It is due after its interval, when a call waits for it, or when the report has changed.
        After a failure, changes do not make it due.
        """
        seconds = self._retry_pause(failures) if failures else self._lease_s / REPORTS_PER_LEASE
        until = self._clock() + seconds
        while self._clock() < until and (failures or not self._has_changed()):
            try:
                async with asyncio.timeout(min(CHECK_ROOM_EVERY_S, seconds)):
                    await self._contact.report_now.wait()
            except TimeoutError:
                continue
            break
        self._contact.report_now.clear()

    def _has_changed(self) -> bool:
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
            readiness={
                name: replace(one, reason=f"{one.reason:.{MAX_PROBLEM_CHARS}}")
                for name, one in condition.readiness.items()
            },
            problems=tuple(
                f"{problem:.{MAX_PROBLEM_CHARS}}" for problem in condition.problems[:MAX_PROBLEMS]
            ),
        )

    async def _check_in(self) -> None:
        """Send one report, after a join if there is no lease.

        Raises ``Conflict`` if another process is alive under this id.
        """
        sent_at = self._clock()
        try:
            reply = await self._join_and_report()
        except Fenced as error:
            self._contact.refused(self._contact.lease, error)
            raise
        except Conflict:
            raise
        except Exception as error:
            # Even an unexpected error is no reason to stop serving.
            self._contact.failed(sent_at, str(error))
            raise
        if self._contact.report_answered(sent_at, reply):
            self._recorder.record_all()
        self._recorder.wake()

    async def _join_and_report(self) -> ReportReply:
        lease = self._contact.lease
        if lease is not None:
            try:
                return await self._send_report(lease)
            except Fenced as error:
                if error.replaced:
                    raise
                self._contact.refused(lease, error)
        lease = await self._directory.join(self._card, self._identity.token, last_epoch=self._identity.epoch)
        await asyncio.to_thread(self._identity.save_epoch, lease.epoch)
        self._contact.joined(lease)
        self._recorder.record_all()
        log.info("joined the fleet", worker=lease.worker_id, epoch=lease.epoch)
        return await self._send_report(lease)

    async def _send_report(self, lease: Lease) -> ReportReply:
        report = self._report()
        reply = await self._directory.report(lease, report)
        self._reported, self._reported_at = report, self._clock()
        return reply

    async def _report_activity(self) -> None:
        while self._contact.fenced is None:
            await asyncio.sleep(REPORT_ACTIVITY_EVERY_S)
            if self._contact.reachable and self._recorder.member.is_open:
                self._recorder.report_activity()
