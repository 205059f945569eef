"""Keeps the directory's record of a worker's sessions true: what changes is written, after a doubt all is,
and what the directory holds for this worker although it has it not is forgotten.

One task writes, so that of one session the later state is written later. It waits for nobody but the
directory, and nobody waits for it for long.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence

import structlog

from sandlot.domain.errors import Unavailable
from sandlot.domain.session import Session, SessionState
from sandlot.fleet.contact import Contact, pause_after
from sandlot.fleet.directory import Directory, Fenced, Lease, SessionEntry
from sandlot.fleet.identity import Identity
from sandlot.fleet.member import Member
from sandlot.fleet.outbox import Item, Outbox

log = structlog.get_logger("sandlot.recorder")

# Sessions in one call.
BATCH = 50
# Seconds that whoever changes a session waits for the directory.
TELL_WITHIN_S = 2.0
# Seconds by which the directory may be behind with when a session was last used.
ACTIVITY_AFTER_S = 30.0
# Seconds until the next try, at most.
MAX_PAUSE_S = 3.0


class Recorder:
    """``complete``: all sessions are recorded since it was last asked for."""

    def __init__(self, directory: Directory, contact: Contact, identity: Identity) -> None:
        self._directory = directory
        self.member: Member  # from the start of the membership on; nothing is done before
        self._identity = identity
        self._contact = contact
        self._outbox = Outbox()
        self._wake = asyncio.Event()
        self._asked = 0  # how often all was asked for: whoever records meanwhile may be too early
        self._all_wanted = False
        self._left: set[str] | None = None  # of all, those that are not recorded yet
        # What is being opened and not with the member yet; None: the directory was not told of it.
        self._opening: dict[str, SessionEntry | None] = {}
        self._taken: frozenset[str] = frozenset()  # another worker's, and still here
        self._untold = False  # whether a predecessor's loss could not be taken in
        self._in_doubt = False  # whether the directory may hold what is not here
        self._size = BATCH
        self._activity_told: dict[str, float] = {}  # session → when it was last used, as was told

    @property
    def complete(self) -> bool:
        return not self._all_wanted and self._left is None

    def record_all(self) -> None:
        """As soon as the worker knows its sessions, and each time anew from the beginning."""
        self._asked += 1
        self._all_wanted, self._left = True, None
        self._wake.set()

    def tell_activity(self) -> None:
        """Lists are the directory's: of sessions that are in use it is told now and then."""
        told = {}
        for session, key in self.member.recorded_sessions():
            if session.state is not SessionState.ACTIVE:
                continue
            known = self._activity_told.get(session.id, session.created_at)
            if session.last_active_at - known >= ACTIVITY_AFTER_S:
                self._outbox.put_unless_waiting(SessionEntry(session, None, key))
                self._wake.set()
                known = session.last_active_at
            told[session.id] = known
        self._activity_told = told

    def wake(self) -> None:
        self._wake.set()

    # --- one session --------------------------------------------------------------------------

    @contextlib.contextmanager
    def opening(self, session_id: str, *, new: bool) -> Iterator[None]:
        asked = self._asked
        self._opening[session_id] = None
        try:
            yield
        except BaseException:
            if new and self._opening[session_id] is not None:
                # The directory may have it now, or have it later: what was sent to a Redis that hung may be
                # done after all that was sent since. One that was taken over is never forgotten for that.
                self._outbox.forget(session_id)
                self._in_doubt = True
                self._wake.set()
            raise
        else:
            entry = self._opening[session_id]
            if entry is not None and self._asked != asked:
                # All were asked for meanwhile, and this one was not among them yet.
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
                # Given up by the task that writes: whoever makes it anew holds what giving up waits for.
                self._taken |= taken
                self._wake.set()
            raise _not_recorded("the session, or its thread, has its sandbox on another worker by now")

    async def changed(self, session: Session, key: str | None) -> None:
        if self._contact.fenced is not None:
            return
        written = self._outbox.put(SessionEntry(session, None, key))
        self._wake.set()
        if self._contact.lease is not None and self._contact.reachable:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TELL_WITHIN_S):
                    await written.wait()

    # --- all that wait ------------------------------------------------------------------------

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
                log.exception("sessions could not be recorded")
                failures += 1
                await asyncio.sleep(pause_after(failures, MAX_PAUSE_S))

    async def _step(self, lease: Lease | None) -> bool:
        """One call of the directory, if there is something to say and somebody to say it to."""
        if lease is None or not self._contact.reachable:
            return False
        if self._taken:
            taken, self._taken = self._taken, frozenset()
            await self._give_up(taken)
            return True
        if self._outbox.overflowed:
            self._outbox.overflowed = False
            self.record_all()
        if self._all_wanted and self.member.is_open:
            self._all_wanted = False
            self._left = set()
            for session, key in self.member.recorded_sessions():
                self._outbox.put_unless_waiting(SessionEntry(session, None, key))
                self._left.add(session.id)
        if self._left is not None and not self._left:
            # A newcomer is not: what it has to report as lost comes to it from those that it would forget.
            if not self._identity.newcomer:
                self._contact.sure()
            await self._forget_others(lease)
        elif self._outbox:
            await self._write(lease, self._outbox.first(self._size))
        elif self._in_doubt:
            self._in_doubt = False
            try:
                await self._forget_others(lease)
            except BaseException:
                self._in_doubt = True
                raise
        else:
            return False
        return True

    async def _write(self, lease: Lease, items: Sequence[Item]) -> None:
        entries = [item.entry for item in items if item.entry is not None]
        never_were = [item.session_id for item in items if item.entry is None and not self._is_here(item)]
        left = self._left
        try:
            taken = await self._directory.record(lease, entries) if entries else frozenset()
            if never_were:
                await self._directory.forget(lease, never_were)
        except (Fenced, Unavailable):
            raise
        except Exception:
            if len(items) == 1:
                # It would hold up all others for ever; when all are recorded next, it is tried again.
                self._done(items, left)
            self._outbox.last(items)
            self._size = 1
            raise
        self._size = BATCH
        if taken:
            await self._give_up(taken)
        self._done(items, left)

    def _done(self, items: Sequence[Item], left: set[str] | None) -> None:
        self._outbox.done(items)
        if left is not None:
            left.difference_update(item.session_id for item in items)

    def _is_here(self, item: Item) -> bool:
        return item.session_id in self._opening or self.member.generation_of(item.session_id) is not None

    async def _forget_others(self, lease: Lease) -> None:
        """What the directory has for us and we have not. Which that is, is decided after a page has come and
        without a wait: whatever began to be ours until then is seen.
        """
        asked, after = self._asked, None
        self._untold = False
        while True:
            page = await self._directory.held(lease.worker_id, after=after)
            ours = {session.id for session, _ in self.member.recorded_sessions()}
            strange = [
                session_id
                for session_id in page.ids
                if session_id not in ours
                and session_id not in self._outbox
                and session_id not in self._opening
            ]
            if strange and self._identity.newcomer:
                strange = await self._not_taken_in(lease, strange)
            if strange:
                log.warning("forgetting sessions that are not here", count=len(strange))
                await self._directory.forget(lease, strange)
            after = page.next
            if after is None:
                break
        if self._asked == asked:
            self._left = None
            if self._identity.newcomer:
                self._contact.sure()
                if not self._untold:
                    await asyncio.to_thread(self._identity.settle)
            self._contact.hurry.set()  # the directory waits for it

    async def _not_taken_in(self, lease: Lease, session_ids: Sequence[str]) -> list[str]:
        """A worker that has this folder for the first time, and finds sessions under its name, stands in the
        place of another one, whose disk is gone: its sessions are lost, and that is told.
        """
        left = []
        for session_id in session_ids:
            lost = None
            try:
                found = await self._directory.find(session_id)
                if session_id in self._opening or self.member.generation_of(session_id) is not None:
                    continue  # has become ours meanwhile
                if found is not None and found.worker.id == lease.worker_id:
                    lost = await self.member.take_in_lost(found.session)
            except (Fenced, Unavailable):
                raise
            except Exception:
                # It must not keep the others waiting for ever, and stays on record for the next recording.
                log.exception("a loss could not be told", session=session_id)
                self._untold = True
                continue
            if lost is None:
                left.append(session_id)
            else:
                self._outbox.put_unless_waiting(SessionEntry(lost))
        return left

    async def _give_up(self, session_ids: frozenset[str]) -> None:
        self._drop(session_ids)
        await self.member.give_up(session_ids)

    def _drop(self, session_ids: frozenset[str]) -> None:
        self._outbox.drop(session_ids)
        if self._left is not None:
            self._left -= session_ids

    async def flush(self, within_s: float) -> None:
        """Until nothing waits, or the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while self._outbox and self._contact.lease is not None and self._contact.reachable:
                    await self._outbox.first(1)[0].written.wait()


def _not_recorded(why: str) -> Unavailable:
    return Unavailable(
        f"the session could not be recorded in the fleet's directory, and was not made: {why}",
        retry_after_s=1.0,
        may_have_executed=False,
        details={"reason": "not_recorded"},
    )
