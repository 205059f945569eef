"""An exec as the service hands it out: the sandbox's own, with the session's name on its result and on its
loss.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from sandlot.domain.computer import Execution
from sandlot.domain.errors import SandboxLost, SandlotError
from sandlot.domain.execution import MAX_OUTPUT_LIMIT_BYTES, ExecEvent, ExecResult, Exited, ResultFold
from sandlot.worker.live import Live

T = TypeVar("T")
Explain = Callable[[SandboxLost], Awaitable[SandlotError]]


class SessionExecution:
    def __init__(self, inner: Execution, live: Live, explain: Explain, offset: int) -> None:
        self._inner = inner
        self._live = live
        self._explain = explain
        self._offset = offset
        self._generation = live.session.generation

    @property
    def exec_id(self) -> str:
        return self._inner.exec_id

    async def events(self) -> AsyncIterator[ExecEvent]:
        self._live.readers += 1
        try:
            async for event in answered(self._live, self._inner.events()):
                if isinstance(event, Exited):
                    self._live.touch()
                yield event
        except SandboxLost as error:
            raise await self._explain(error) from error
        finally:
            self._live.readers -= 1

    async def result(self) -> ExecResult:
        fold = ResultFold(self.exec_id, MAX_OUTPUT_LIMIT_BYTES, self._offset)
        async for event in self.events():
            result = fold.add(event)
            if result is not None:
                return named(result, self._live, self._generation)
        raise SandlotError("the exec's events ended without its exit", may_have_executed=True)

    async def write_stdin(self, data: bytes) -> None:
        # However long: a command that does not read makes its writers wait.
        async with self._live.answering():
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


async def answered(live: Live, things: AsyncIterator[T], within_s: float | None = None) -> AsyncIterator[T]:
    """Each of what a sandbox sends, as long as it answers."""
    try:
        while True:
            async with live.answering(within_s):
                thing = await anext(things, None)
            if thing is None:
                return
            yield thing
    finally:
        aclose = getattr(things, "aclose", None)
        if aclose is not None:
            await aclose()


def named(result: ExecResult, live: Live, generation: int) -> ExecResult:
    return replace(result, session_id=live.session.id, generation=generation)
