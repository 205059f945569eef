"""Sees the end of each command: it is recorded and counted, once, and the caller's slot becomes free.

Whoever reads a command's events sees its end. A command that nobody reads is followed by a reader of our own,
which takes no output. If an end cannot be seen, because the sandbox is gone, the history says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Final

from sandlot.domain.callers.principal import Principal
from sandlot.domain.callers.slots import ExecSlots
from sandlot.domain.errors import NotFound, SandboxLost, SandlotError
from sandlot.domain.execution import ExecRequest, Exited, Started, verdict_of
from sandlot.domain.history.recorder import Recorder, Subject
from sandlot.domain.metrics.figures import Figures
from sandlot.domain.metrics.table import EXEC_SECONDS, EXECS
from sandlot.providers.base import OnStart, Sandbox
from sandlot.worker.sessions.live_session import LiveSession

# A command that has not ended by then gets a reader. Most have ended.
FOLLOW_AFTER_S: Final = 1.0
# Seconds between two tries to reach the sandbox.
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0
# Beyond all output, so that the agent sends the end and nothing else.
NO_OUTPUT: Final = 2**62


class ExecEnds:
    def __init__(self, recorder: Recorder, slots: ExecSlots, figures: Figures) -> None:
        self._recorder = recorder
        self._slots = slots
        self._figures = figures
        self._environments: dict[tuple[str, str], str] = {}  # of the commands that run, by session and exec
        # By session and exec. None: the history does not know the command, and it only has a slot.
        self._started: dict[str, dict[str, Subject | None]] = {}
        self._followers: dict[tuple[str, str], asyncio.Task[None]] = {}

    @asynccontextmanager
    async def starting(
        self, live_session: LiveSession, sandbox: Sandbox, request: ExecRequest, caller: Principal
    ) -> AsyncIterator[OnStart]:
        """A context for starting a command. Raises ``Busy`` if the caller has no slot for it.

        It gives what to call once the agent has started the command. A command may run although an error
        ended the context, so it is followed.
        """
        session, exec_id = live_session.session, request.exec_id
        if await self._slots.take(caller, session.id, exec_id):
            self._started.setdefault(session.id, {})[exec_id] = None
        if live_session.network is not None:
            live_session.network.execs.started(exec_id)

        def started(event: Started) -> None:
            # The agent never runs an id twice. Asked for the same command again, it shows the first one.
            if event.existing:
                return
            self._environments[session.id, exec_id] = session.environment
            if self._recorder.on:
                subject = self._recorder.exec_started(session, request, live_session.record.env, caller)
                self._started.setdefault(session.id, {})[exec_id] = subject

        try:
            yield started
        except BaseException:
            self.follow(live_session, sandbox, exec_id)
            raise

    def ended(self, session_id: str, exec_id: str, exited: Exited) -> None:
        """Record the end, unless it is recorded already."""
        started = self._take(session_id, exec_id)
        if started is not None:
            self._recorder.exec_ended(started, exited)
        if (environment := self._environments.pop((session_id, exec_id), None)) is not None:
            self._figures.count(EXECS, environment, verdict_of(exited).value)
            self._figures.observe(EXEC_SECONDS, exited.duration_ms / 1000, environment)

    def all_unseen(self, session_id: str, reason: str) -> None:
        """The session has no sandbox any more, so that no end can be seen."""
        counted = [exec_id for of_session, exec_id in self._environments if of_session == session_id]
        for exec_id in {*self._started.get(session_id, ()), *counted}:
            self._unseen(session_id, exec_id, reason)

    def _unseen(self, session_id: str, exec_id: str, reason: str) -> None:
        started = self._take(session_id, exec_id)
        if started is not None:
            self._recorder.exec_unseen(started, reason)
        if (environment := self._environments.pop((session_id, exec_id), None)) is not None:
            self._figures.count(EXECS, environment, "unseen")

    @property
    def running(self) -> int:
        """How many commands of this process run, as far as their ends were seen."""
        return len(self._environments)

    def resume(self, session_id: str, started: Mapping[str, Subject]) -> None:
        """Take over the commands that an earlier process has started."""
        if started:
            self._started[session_id] = dict(started)
        for exec_id, subject in started.items():
            self._slots.resume(subject.tenant, subject.key_id, session_id, exec_id)

    def follow_all(self, live_session: LiveSession, sandbox: Sandbox) -> None:
        for exec_id in self._started.get(live_session.session.id, ()):
            self.follow(live_session, sandbox, exec_id)

    def follow(
        self, live_session: LiveSession, sandbox: Sandbox, exec_id: str, *, after_s: float = 0.0
    ) -> None:
        """Read a command's end, if nobody else has by then."""
        name = (live_session.session.id, exec_id)
        known = name in self._environments or exec_id in self._started.get(name[0], ())
        if not known or name in self._followers:
            return
        task = asyncio.create_task(
            self._follow(live_session, sandbox, exec_id, after_s), name=f"follow {exec_id}"
        )
        self._followers[name] = task
        task.add_done_callback(lambda _: self._followers.pop(name, None))

    async def close(self) -> None:
        tasks = list(self._followers.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _take(self, session_id: str, exec_id: str) -> Subject | None:
        of_session = self._started.get(session_id)
        started = None if of_session is None else of_session.pop(exec_id, None)
        if of_session is not None and not of_session:
            del self._started[session_id]
        self._slots.release(session_id, exec_id)
        follower = self._followers.get((session_id, exec_id))
        if follower is not None and follower is not asyncio.current_task():
            follower.cancel()
        return started

    async def _follow(
        self, live_session: LiveSession, sandbox: Sandbox, exec_id: str, after_s: float
    ) -> None:
        await asyncio.sleep(after_s)
        session_id, pause_s = live_session.session.id, FIRST_PAUSE_S
        while True:
            try:
                exited = await _end_of(sandbox, exec_id)
            except NotFound:
                self._unseen(session_id, exec_id, "the sandbox no longer knows the command")
                return
            except SandboxLost:
                return  # its loss is recorded, and with it all its commands
            except SandlotError:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            else:
                self.ended(session_id, exec_id, live_session.denials_of(exec_id, exited))
                return


async def _end_of(sandbox: Sandbox, exec_id: str) -> Exited:
    execution = await sandbox.attach(exec_id, offset=NO_OUTPUT)
    try:
        async with aclosing(execution.events()) as events:  # type: ignore[type-var]
            async for event in events:
                if isinstance(event, Exited):
                    return event
    finally:
        await execution.detach()
    raise SandlotError("The exec's events ended without an exit event.")
