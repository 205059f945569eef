"""The contexts of one of the fake's sandboxes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from sandlot.domain.code.contexts import MAX_CONTEXTS, Cell, Context, CreateContext, Language, new_context_id
from sandlot.domain.code.events import CellCount, CellError, CellEvent, event_body
from sandlot.domain.errors import Busy, Conflict, NotFound
from sandlot.testing.fake.code.cells import CellCall, CellScripts
from sandlot.testing.fake.code.small_python import SmallPython
from sandlot.testing.fake.tree import WORKSPACE

_INTERRUPTED = CellError("KeyboardInterrupt", "", ("KeyboardInterrupt",))
_RESTARTED = CellError("KernelRestarted", "The kernel was restarted.")
_DELETED = CellError("KernelDied", "The context was deleted.")


@dataclass
class _Kernel:
    info: Context
    python: SmallPython = field(default_factory=SmallPython)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    work: asyncio.Task[int] | None = None
    end: CellError | None = None  # why ``work`` is being cancelled
    deleted: bool = False

    @property
    def why(self) -> CellError:
        """Why the cell was broken off. If its exec was killed, or its time was up, its context goes on."""
        return self.end or _INTERRUPTED

    def break_off(self, why: CellError) -> None:
        if self.work is not None:
            self.end = why
            self.work.cancel()


class FakeContexts:
    def __init__(self, scripts: CellScripts) -> None:
        self._scripts = scripts
        self._kernels: dict[str, _Kernel] = {}

    # --- contexts ---------------------------------------------------------------------------------

    def create(self, request: CreateContext) -> Context:
        id = request.context_id or new_context_id(request.language)
        wanted = Context(id, request.language, request.cwd or WORKSPACE)
        known = self._kernels.get(id)
        if known is not None:
            if (known.info.language, known.info.cwd) != (wanted.language, wanted.cwd):
                raise Conflict(
                    f"Context {id} exists with another language or folder. Use another id, or delete it first."
                )
            return self._described(known)
        return self._described(self._add(wanted))

    def _add(self, info: Context) -> _Kernel:
        if len(self._kernels) >= MAX_CONTEXTS:
            raise Busy(f"A session can have {MAX_CONTEXTS} contexts at once. Delete one first.")
        self._kernels[info.id] = kernel = _Kernel(info)
        return kernel

    def list(self) -> list[Context]:
        return [self._described(kernel) for kernel in self._kernels.values()]

    def interrupt(self, context_id: str) -> None:
        self._kernel(context_id).break_off(_INTERRUPTED)

    def restart(self, context_id: str) -> Context:
        kernel = self._kernel(context_id)
        kernel.break_off(_RESTARTED)
        kernel.python = SmallPython()
        kernel.info = replace(kernel.info, executions=0, restarts=kernel.info.restarts + 1)
        return self._described(kernel)

    def delete(self, context_id: str) -> None:
        kernel = self._kernels.pop(context_id, None)
        if kernel is not None:
            kernel.deleted = True
            kernel.break_off(_DELETED)

    def language_of(self, cell: Cell) -> Language:
        """What a cell is written in. ``NotFound`` if its context is not there, and not a default one."""
        if cell.context in self._kernels:
            return self._kernels[cell.context].info.language
        if cell.context not in set(Language):
            raise _no_context(cell.context)
        return Language(cell.context)

    def _kernel(self, context_id: str) -> _Kernel:
        if context_id not in self._kernels:
            raise _no_context(context_id)
        return self._kernels[context_id]

    def _described(self, kernel: _Kernel) -> Context:
        return replace(kernel.info, busy=kernel.work is not None)

    # --- cells ------------------------------------------------------------------------------------

    async def run(self, cell: Cell, env: dict[str, str], write: Callable[[bytes], Awaitable[None]]) -> int:
        """Run a cell in its turn; return the exit code of its exec."""

        async def emit(event: CellEvent) -> None:
            await write(json.dumps(event_body(event)).encode() + b"\n")

        kernel = self._kernels.get(cell.context)
        if kernel is None:
            kernel = self._add(Context(cell.context, Language(cell.context), WORKSPACE))
        async with kernel.turn:
            if kernel.deleted:
                await emit(_DELETED)
                return 1
            kernel.info = replace(kernel.info, executions=kernel.info.executions + 1)
            await emit(CellCount(kernel.info.executions))
            kernel.work = asyncio.create_task(self._evaluate(kernel, cell, env, emit))
            try:
                return await kernel.work
            except asyncio.CancelledError:
                await emit(kernel.why)
                if kernel.end is None:
                    raise
                return 1
            finally:
                kernel.work.cancel()
                kernel.work = kernel.end = None

    async def _evaluate(
        self, kernel: _Kernel, cell: Cell, env: dict[str, str], emit: Callable[[CellEvent], Awaitable[None]]
    ) -> int:
        language = kernel.info.language
        reply = await self._scripts.reply(CellCall(cell.code, cell.context, language, env))
        if reply is not None:
            await asyncio.sleep(reply.delay_s)
            for event in reply.events():
                await emit(event)
            return 0 if reply.error is None else 1
        if language is Language.PYTHON:
            return await kernel.python.run(cell.code, emit)
        await emit(
            CellError(
                "NotUnderstoodError",
                f"FakeSandlot has no {language}. Script this code with FakeSandlot.on_cell().",
            )
        )
        return 1


def _no_context(context_id: str) -> NotFound:
    return NotFound(f"Context {context_id[:64]!r} does not exist in this session. Create it first.")
