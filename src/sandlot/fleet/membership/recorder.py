"""Keeps the directory's record of a worker's sessions correct.

The recorder writes each change. After a lost contact it writes all sessions, and removes those that
the directory has for this worker but the worker does not have. A single task writes, so that the
states of a session are written in order. The task waits only for the directory, and callers do not
wait long for the task.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence

import structlog

from sandlot.domain.errors import Unavailable
from sandlot.domain.session import Session, SessionState
from sandlot.domain.volumes.volume import Volume, taken_name
from sandlot.fleet.directory.contract import Directory, Fenced, SessionEntry
from sandlot.fleet.directory.lease import Lease
from sandlot.fleet.directory.volume_names import VolumeEntry
from sandlot.fleet.membership.contact import Contact, pause_after
from sandlot.fleet.membership.identity import Identity
from sandlot.fleet.membership.member import Member
from sandlot.fleet.membership.outbox import Item, Outbox

log = structlog.get_logger("sandlot.recorder")

# Sessions per call.
BATCH = 50
# Seconds that a change of a session waits for the directory.
RECORD_WITHIN_S = 2.0
# Seconds by which the directory's time of a session's last use may be behind.
ACTIVITY_AFTER_S = 30.0
# The longest pause between two tries, in seconds.
MAX_PAUSE_S = 3.0


class Recorder:
    """Writes a worker's sessions to the directory.

    ``complete`` means that all sessions are recorded since the last ``record_all``.
    """

    def __init__(self, directory: Directory, contact: Contact, identity: Identity) -> None:
        self._directory = directory
        self.member: Member  # set when the membership starts; the recorder does nothing before
        self._identity = identity
        self._contact = contact
        self._outbox = Outbox()
        self._wake = asyncio.Event()
        # Counts calls of ``record_all``, so that a step can see that a newer one came in between.
        self._record_all_calls = 0
        self._record_all_pending = False
        self._unrecorded: set[str] | None = None  # sessions that ``record_all`` has yet to write
        # Sessions being opened that the member does not have yet. None: not sent to the directory.
        self._opening: dict[str, SessionEntry | None] = {}
        self._taken: frozenset[str] = frozenset()  # owned by another worker, but still here
        self._loss_unreported = False  # whether adopting a predecessor's lost session failed
        self._volumes_pending = False  # whether ``record_all`` has yet to write the volumes' names
        self._extras_possible = False  # whether the directory may have sessions that are not here
        self._batch_size = BATCH
        self._activity_reported: dict[str, float] = {}  # session → its last use that was reported

    @property
    def complete(self) -> bool:
        return not self._record_all_pending and self._unrecorded is None and not self._volumes_pending

    def record_all(self) -> None:
        """Record all sessions and volumes, as soon as the worker knows them.

        Each call starts from the beginning.
        """
        self._record_all_calls += 1
        self._record_all_pending, self._unrecorded = True, None
        self._volumes_pending = True
        self._wake.set()

    def report_activity(self) -> None:
        """Record when active sessions were last used, because the directory serves lists."""
        reported = {}
        for session, key in self.member.recorded_sessions():
            if session.state is not SessionState.ACTIVE:
                continue
            known = self._activity_reported.get(session.id, session.created_at)
            if session.last_active_at - known >= ACTIVITY_AFTER_S:
                self._outbox.put_unless_waiting(SessionEntry(session, None, key))
                self._wake.set()
                known = session.last_active_at
            reported[session.id] = known
        self._activity_reported = reported

    def wake(self) -> None:
        self._wake.set()

    # --- one session --------------------------------------------------------------------------

    @contextlib.contextmanager
    def opening(self, session_id: str, *, new: bool) -> Iterator[None]:
        calls_before = self._record_all_calls
        self._opening[session_id] = None
        try:
            yield
        except BaseException:
            if new and self._opening[session_id] is not None:
                # The directory may have the session now or later: a hung Redis may run a call after
                # calls that were sent later. A session that was taken over is not forgotten here.
                self._outbox.forget(session_id)
                self._extras_possible = True
                self._wake.set()
            raise
        else:
            entry = self._opening[session_id]
            if entry is not None and self._record_all_calls != calls_before:
                # A ``record_all`` came meanwhile and did not include this session yet.
                self._outbox.put(entry)
                self._wake.set()
        finally:
            del self._opening[session_id]

    async def opened(self, session: Session, key: str | None, reservation: str | None) -> None:
        lease = self._contact.lease
        if lease is None:
            raise _not_recorded(self._contact.problem or "this worker is joining the fleet")
        sent_at = self._contact.clock()
        if session.id in self._opening:
            self._opening[session.id] = SessionEntry(session, None, key)
        try:
            taken = await self._directory.record(lease, [SessionEntry(session, reservation, key)])
        except Fenced as error:
            self._contact.refused(lease, error)
            raise _not_recorded(error.message) from error
        except Unavailable as error:
            self._contact.failed(sent_at, error.message)
            raise _not_recorded(error.message) from error
        if session.id in taken:
            self._drop(taken)
            if self.member.generation_of(session.id) is not None:
                # Leave giving it up to the writing task: this caller, which recreates the session,
                # holds the lock that giving up waits for.
                self._taken |= taken
                self._wake.set()
            raise _not_recorded("the session or its thread now has its sandbox on another worker")

    async def changed(self, session: Session, key: str | None) -> None:
        if self._contact.fenced is not None:
            return
        written = self._outbox.put(SessionEntry(session, None, key))
        self._wake.set()
        if self._contact.lease is not None and self._contact.reachable:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RECORD_WITHIN_S):
                    await written.wait()

    # --- the writing task ---------------------------------------------------------------------

    async def run(self) -> None:
        failures = 0
        while self._contact.fenced is None:
            lease, sent_at = self._contact.lease, self._contact.clock()
            try:
                if not await self._step(lease):
                    await self._wake.wait()
                    self._wake.clear()
                failures = 0
            except Fenced as error:
                self._contact.refused(lease, error)
            except Unavailable as error:
                self._contact.failed(sent_at, error.message)
                failures += 1
                await asyncio.sleep(pause_after(failures, MAX_PAUSE_S))
            except Exception:
                log.exception("cannot record sessions")
                failures += 1
                await asyncio.sleep(pause_after(failures, MAX_PAUSE_S))

    async def _step(self, lease: Lease | None) -> bool:
        """Make one call to the directory. False if there is nothing to write, or no contact."""
        if lease is None or not self._contact.reachable:
            return False
        if self._taken:
            taken, self._taken = self._taken, frozenset()
            await self._give_up(taken)
            return True
        if self._outbox.overflowed:
            self._outbox.overflowed = False
            self.record_all()
        if self._volumes_pending and self.member.is_open:
            await self._record_volumes(lease)
            return True
        if self._record_all_pending and self.member.is_open:
            self._record_all_pending = False
            self._unrecorded = set()
            for session, key in self.member.recorded_sessions():
                self._outbox.put_unless_waiting(SessionEntry(session, None, key))
                self._unrecorded.add(session.id)
        if self._unrecorded is not None and not self._unrecorded:
            # A newcomer waits with this: the sessions that it must report as lost are among those
            # that ``_forget_unknown`` finds.
            if not self._identity.newcomer:
                self._contact.ownership_confirmed()
            await self._forget_unknown(lease)
        elif self._outbox:
            await self._write(lease, self._outbox.first(self._batch_size))
        elif self._extras_possible:
            self._extras_possible = False
            try:
                await self._forget_unknown(lease)
            except BaseException:
                self._extras_possible = True
                raise
        else:
            return False
        return True

    async def _record_volumes(self, lease: Lease) -> None:
        self._volumes_pending = False
        try:
            entries = [VolumeEntry.of(volume) for volume in await self.member.recorded_volumes()]
            taken = await self._directory.record_volumes(lease, entries)
        except BaseException:
            self._volumes_pending = True
            raise
        if taken:
            log.warning("volumes whose name another volume has; only their ids find them", ids=sorted(taken))

    async def name_volume(self, volume: Volume) -> None:
        """Give a new volume its name in the fleet. ``Conflict`` if another one has it."""
        lease = self._lease_for_volumes()
        try:
            taken = await self._directory.record_volumes(lease, [VolumeEntry.of(volume)])
        except Fenced as error:
            self._contact.refused(lease, error)
            raise _volume_not_recorded(error.message) from error
        if taken:
            raise taken_name(volume.name)

    async def forget_volume(self, volume: Volume) -> None:
        lease = self._lease_for_volumes()
        try:
            await self._directory.forget_volume(lease, VolumeEntry.of(volume))
        except Fenced as error:
            self._contact.refused(lease, error)
            raise _volume_not_recorded(error.message) from error

    def _lease_for_volumes(self) -> Lease:
        if self._contact.lease is None:
            raise _volume_not_recorded(self._contact.problem or "this worker is joining the fleet")
        return self._contact.lease

    async def _write(self, lease: Lease, items: Sequence[Item]) -> None:
        entries = [item.entry for item in items if item.entry is not None]
        to_forget = [item.session_id for item in items if item.entry is None and not self._is_here(item)]
        unrecorded = self._unrecorded
        try:
            taken = await self._directory.record(lease, entries) if entries else frozenset()
            if to_forget:
                await self._directory.forget(lease, to_forget)
        except (Fenced, Unavailable):
            raise
        except Exception:
            if len(items) == 1:
                # Skip it: it would block all others forever. The next ``record_all`` tries again.
                self._done(items, unrecorded)
            self._outbox.move_to_end(items)
            self._batch_size = 1
            raise
        self._batch_size = BATCH
        if taken:
            await self._give_up(taken)
        self._done(items, unrecorded)

    def _done(self, items: Sequence[Item], unrecorded: set[str] | None) -> None:
        self._outbox.done(items)
        if unrecorded is not None:
            unrecorded.difference_update(item.session_id for item in items)

    def _is_here(self, item: Item) -> bool:
        return item.session_id in self._opening or self.member.generation_of(item.session_id) is not None

    async def _forget_unknown(self, lease: Lease) -> None:
        """Remove sessions that the directory has for this worker, but the worker does not have.

        The comparison runs after a page has arrived, without awaiting, so that it sees every
        session that was opened until then.
        """
        calls_before, after = self._record_all_calls, None
        self._loss_unreported = False
        while True:
            page = await self._directory.held(lease.worker_id, after=after)
            own = {session.id for session, _ in self.member.recorded_sessions()}
            unknown = [
                session_id
                for session_id in page.ids
                if session_id not in own
                and session_id not in self._outbox
                and session_id not in self._opening
            ]
            if unknown and self._identity.newcomer:
                unknown = await self._adopt_lost(lease, unknown)
            if unknown:
                log.warning("forgetting sessions that are not on this worker", count=len(unknown))
                await self._directory.forget(lease, unknown)
            after = page.next
            if after is None:
                break
        if self._record_all_calls == calls_before:
            self._unrecorded = None
            if self._identity.newcomer:
                self._contact.ownership_confirmed()
                if not self._loss_unreported:
                    await asyncio.to_thread(self._identity.settle)
            self._contact.report_now.set()  # the directory waits for ``complete`` in a report

    async def _adopt_lost(self, lease: Lease, session_ids: Sequence[str]) -> list[str]:
        """Adopt a predecessor's sessions as lost. Returns those that were not adopted.

        A worker with a new folder that finds sessions under its id replaces a worker whose disk is
        gone. The sandboxes of these sessions are lost, and the worker reports that.
        """
        not_adopted = []
        for session_id in session_ids:
            lost = None
            try:
                found = await self._directory.find(session_id)
                if session_id in self._opening or self.member.generation_of(session_id) is not None:
                    continue  # the worker has it now
                if found is not None and found.worker.id == lease.worker_id:
                    lost = await self.member.adopt_lost_session(found.session)
            except (Fenced, Unavailable):
                raise
            except Exception:
                # Skip it, so that it does not block the others. It stays in the directory for the
                # next ``record_all``.
                log.exception("cannot report a loss", session=session_id)
                self._loss_unreported = True
                continue
            if lost is None:
                not_adopted.append(session_id)
            else:
                self._outbox.put_unless_waiting(SessionEntry(lost))
        return not_adopted

    async def _give_up(self, session_ids: frozenset[str]) -> None:
        self._drop(session_ids)
        await self.member.give_up(session_ids)

    def _drop(self, session_ids: frozenset[str]) -> None:
        self._outbox.drop(session_ids)
        if self._unrecorded is not None:
            self._unrecorded -= session_ids

    async def flush(self, within_s: float) -> None:
        """Wait until the outbox is empty, for at most ``within_s``."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while self._outbox and self._contact.lease is not None and self._contact.reachable:
                    await self._outbox.first(1)[0].written.wait()


def _not_recorded(why: str) -> Unavailable:
    return Unavailable(
        f"The session was not created, because it could not be recorded in the fleet's directory: {why}",
        retry_after_s=1.0,
        may_have_executed=False,
        details={"reason": "not_recorded"},
    )


def _volume_not_recorded(why: str) -> Unavailable:
    return Unavailable(
        f"The volume's name could not be changed in the fleet's directory: {why}",
        retry_after_s=1.0,
        may_have_executed=False,
        details={"reason": "not_recorded"},
    )
