"""The service's handle on an exec.

It wraps the sandbox's own and adds the session to results and losses.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from sandlot.domain.computer import Execution
from sandlot.domain.errors import SandboxLost, SandlotError
from sandlot.domain.execution import (
    MAX_OUTPUT_LIMIT_BYTES,
    ExecEvent,
    ExecResult,
    Exited,
    ResultFold,
    verdict_of,
)
from sandlot.worker.history.exec_ends import ExecEnds
from sandlot.worker.recordings.session_recording import SessionRecording
from sandlot.worker.sessions.live_session import LiveSession

T = TypeVar("T")
Explain = Callable[[SandboxLost], Awaitable[SandlotError]]


class SessionExecution:
    def __init__(
        self,
        inner: Execution,
        live_session: LiveSession,
        explain: Explain,
        offset: int,
        ends: ExecEnds,
        recording: SessionRecording | None,
    ) -> None:
        self._inner = inner
        self._live_session = live_session
        self._explain = explain
        self._offset = offset
        self._ends = ends
        self._recording = recording
        self._generation = live_session.session.generation

    @property
    def exec_id(self) -> str:
        return self._inner.exec_id

    async def events(self) -> AsyncIterator[ExecEvent]:
        self._live_session.event_readers += 1
        try:
            async for event in while_responsive(self._live_session, self._inner.events()):
                if isinstance(event, Exited):
                    self._live_session.touch()
                    event = self._live_session.denials_of(self.exec_id, event)
                    self._ends.ended(self._live_session.session.id, self.exec_id, event)
                if self._recording is not None:
                    self._recording.seen(self.exec_id, event)
                yield event
        except SandboxLost as error:
            raise await self._explain(error) from error
        finally:
            self._live_session.event_readers -= 1

    async def result(self) -> ExecResult:
        fold = ResultFold(self.exec_id, MAX_OUTPUT_LIMIT_BYTES, self._offset)
        async for event in self.events():
            result = fold.add(event)
            if result is not None:
                return with_session(result, self._live_session, self._generation)
        raise SandlotError("The exec's events ended without an exit event.", may_have_executed=True)

    async def write_stdin(self, data: bytes) -> None:
        # Without a time limit: a command that does not read its input makes writers wait.
        async with self._live_session.awaiting_response():
            await self._explained(self._inner.write_stdin(data))

    async def close_stdin(self) -> None:
        await self._explained(self._inner.close_stdin())

    async def detach(self) -> None:
        await self._inner.detach()

    async def _explained(self, call: Awaitable[None]) -> None:
        try:
            await call
        except SandboxLost as error:
            raise await self._explain(error) from error


async def while_responsive(
    live_session: LiveSession, items: AsyncIterator[T], within_s: float | None = None
) -> AsyncIterator[T]:
    """Yield each item that a sandbox sends. Fails if the sandbox becomes unresponsive, or if one
    item takes longer than ``within_s`` seconds.
    """
    try:
        while True:
            async with live_session.awaiting_response(within_s):
                item = await anext(items, None)
            if item is None:
                return
            yield item
    finally:
        aclose = getattr(items, "aclose", None)
        if aclose is not None:
            await aclose()


def with_denials(result: ExecResult, live_session: LiveSession) -> ExecResult:
    exited = live_session.denials_of(result.exec_id, result.exited)
    return result if exited is result.exited else replace(result, exited=exited, verdict=verdict_of(exited))


def with_session(result: ExecResult, live_session: LiveSession, generation: int) -> ExecResult:
    return replace(result, session_id=live_session.session.id, generation=generation)
