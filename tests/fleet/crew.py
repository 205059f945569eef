"""What tests of a worker's membership need: a worker that has sessions and nothing else, and a directory
whose calls can be held up, made to fail, or made to be lost on the way back.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sandlot.domain.capacity.machine import Condition
from sandlot.domain.errors import Unavailable
from sandlot.domain.session import Session
from sandlot.domain.session_states import mark_worker_lost
from sandlot.domain.volumes.volume import Volume
from sandlot.fleet.directory.contract import (
    Directory,
    SessionEntry,
    WorkerCard,
    WorkerState,
)
from sandlot.fleet.membership.membership import Membership
from sandlot.testing.directory_suite.harness import MARGIN_S, TIMINGS, DirectoryHarness, a_session
from sandlot.testing.eventually import eventually

GONE_AFTER_S = TIMINGS.lease_s + TIMINGS.lost_after_s + MARGIN_S


class Crew:
    """A ``Member``."""

    def __init__(self, *sessions: Session) -> None:
        self.sessions: dict[str, tuple[Session, str | None]] = {
            session.id: (session, None) for session in sessions
        }
        self.given_up: list[str] = []
        self.is_open = True
        self.draining = False
        self.condition_ = Condition()
        self.warm, self.free = 4, 150

    @property
    def session_ids(self) -> set[str]:
        return set(self.sessions)

    @property
    def session_count(self) -> int:
        return len(self.sessions)

    def condition(self) -> Condition:
        return self.condition_

    def room(self) -> Mapping[str, tuple[int, int]]:
        return {"base": (self.warm, self.free - len(self.sessions))}

    def generation_of(self, session_id: str) -> int | None:
        found = self.sessions.get(session_id)
        return None if found is None else found[0].generation

    def recorded_sessions(self) -> Sequence[tuple[Session, str | None]]:
        return list(self.sessions.values())

    async def recorded_volumes(self) -> Sequence[Volume]:
        return ()

    async def adopt_lost_session(self, session: Session) -> Session | None:
        if any(session.thread == other.thread is not None for other, _ in self.sessions.values()):
            return None
        lost = mark_worker_lost(session, session.last_active_at + 1, "w1")
        self.sessions[session.id] = (lost, None)
        return lost

    async def give_up(self, session_ids: Collection[str]) -> None:
        for session_id in session_ids:
            if self.sessions.pop(session_id, None) is not None:
                self.given_up.append(session_id)


class Troubled:
    """A real directory behind trouble, by the names of calls.

    ``failing``: they do not reach it. ``unanswered``: they reach it, and their answers are lost. ``waits``: their
    answers come once the event is set. ``broken``: they fail in a way that nobody has thought of.
    """

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self.failing: set[str] = set()
        self.unanswered: set[str] = set()
        self.broken: set[str] = set()
        self.waits: dict[str, asyncio.Event] = {}
        self.calls: Counter[str] = Counter()
        self.reports: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._directory, name)
        if not asyncio.iscoroutinefunction(found):
            return found

        async def call(*args: Any, **kwargs: Any) -> Any:
            self.calls[name] += 1
            if name in self.failing:
                raise Unavailable("the directory is away", retry_after_s=1.0)
            if name in self.broken:
                raise RuntimeError("nobody has thought of this")
            unanswered = name in self.unanswered
            answer = await found(*args, **kwargs)
            if name in self.waits:
                await self.waits[name].wait()
            if unanswered:
                raise Unavailable("the answer was lost", retry_after_s=1.0)
            if name == "report":
                self.reports.append(args[1])
            return answer

        return call

    def cut(self) -> None:
        self.failing |= {"join", "report", "record", "forget", "held", "leave"}

    def mend(self) -> None:
        self.failing.clear()
        self.unanswered.clear()
        self.broken.clear()


def some_sessions(count: int) -> list[Session]:
    return [a_session(tenant="default", thread=f"t-{number}") for number in range(count)]


class Fleet:
    """``clock`` is the workers' own, which a test sets forward as a machine that slept."""

    def __init__(self, directory: Directory, folder: Path) -> None:
        self.directory = Troubled(directory)
        self.folder = folder
        self.slept = 0.0
        self.started: list[Membership] = []

    def clock(self) -> float:
        return time.monotonic() + self.slept

    def member(self, name: str = "w1", folder: Path | None = None, directory: object = None) -> Membership:
        card = WorkerCard(name, f"http://{name}:8000", "1.0")
        membership = Membership(
            directory or self.directory,  # type: ignore[arg-type]
            card,
            folder or self.folder / name,
            clock=self.clock,
        )
        self.started.append(membership)
        return membership

    async def start(self, crew: Crew, name: str = "w1", **options: object) -> Membership:
        membership = self.member(name, **options)  # type: ignore[arg-type]
        membership.lock()
        await membership.start(crew)
        return membership

    async def complete(self) -> None:
        """The latest report says that all is recorded."""
        await eventually(lambda: bool(self.directory.reports) and self.directory.reports[-1].complete)

    async def die(self, membership: Membership) -> None:
        """As a process that is killed: nothing is said, and the kernel takes the lock back."""
        await membership._background.cancel()
        membership._identity.release()
        self.started.remove(membership)

    async def close(self) -> None:
        self.directory.mend()
        for event in self.directory.waits.values():
            event.set()
        for membership in self.started:
            await membership.close()


async def recorded_for(directory: Directory, worker: str) -> set[str]:
    ids: set[str] = set()
    after = None
    while True:
        page = await directory.held(worker, after=after)
        ids |= set(page.ids)
        after = page.next
        if after is None:
            return ids


async def taken_over(harness: DirectoryHarness, session: Session, by: str = "w2") -> Session:
    """By another worker, after this one was gone for long."""
    await harness.pass_time(GONE_AFTER_S)
    card = WorkerCard(by, f"http://{by}:8000", "1.0")
    lease = await harness.directory.join(card, f"process-{by}")
    anew = replace(session, generation=session.generation + 1)
    assert await harness.directory.record(lease, [SessionEntry(anew)]) == frozenset()
    return anew


async def settled(harness: DirectoryHarness, fleet: Fleet) -> None:
    await harness.pass_time(TIMINGS.lease_s + MARGIN_S)
    for membership in fleet.started:
        membership._contact.report_now.set()

    async def all_alive() -> bool:
        return all(status.ref.state is WorkerState.ALIVE for status in await harness.directory.workers())

    await eventually(all_alive, 20, "every worker has reported since")
