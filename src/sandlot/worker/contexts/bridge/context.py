"""``Context``: a kernel that is started again when it dies, and the cells that wait for it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sandlot.worker.contexts.bridge import events
from sandlot.worker.contexts.bridge.kernel import INTERRUPTED, Kernel, KernelEnded, KernelFailed
from sandlot.worker.contexts.bridge.languages import VALUES_ARE_DISPLAYED, entering, leaving

OK, RAISED, DIED = 0, 1, 3
MAX_WAITING = 64
# Between two interrupts of a cell that nobody waits for any more.
INTERRUPT_AGAIN_S = 2.0


@dataclass(eq=False)
class Cell:
    """One run of code. ``emit`` writes an event for its client. ``gone``: the client is there no more."""

    code: str
    emit: Callable[[Mapping[str, Any]], Awaitable[None]]
    environ: Mapping[str, str]
    env: Mapping[str, str] = field(default_factory=dict)
    gone: bool = False
    interrupted: bool = False
    kernel: Kernel | None = None  # once it runs


class Context:
    """``new_kernel`` makes a kernel that is not started yet."""

    def __init__(self, name: str, language: str, cwd: str, new_kernel: Callable[[str], Kernel]) -> None:
        self.name = name
        self.language = language
        self.cwd = cwd
        self._new_kernel = new_kernel
        self._kernel: Kernel | None = None
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._started = 0
        self._executions = 0
        self._running: Cell | None = None
        self._ended_by: str | None = None  # why its kernel was ended on request
        self._deleted = False
        self._starting: asyncio.Future[None] | None = None
        self._environ: dict[str, str] = {}

    def summary(self) -> dict[str, Any]:
        return {
            "id": self.name,
            "language": self.language,
            "cwd": self.cwd,
            "busy": self._running is not None,
            "executions": self._executions,
            "restarts": max(0, self._started - 1),
        }

    async def open(self, environ: Mapping[str, str]) -> None:
        """Start the kernel, unless it runs."""
        async with self._turn:
            await self._ensure(environ)

    async def _ensure(self, environ: Mapping[str, str]) -> Kernel:
        if self._deleted:
            raise KernelFailed(f"Context {self.name} was deleted.")
        if self._kernel is None:
            kernel = self._new_kernel(self.language)
            await kernel.start(environ, self.cwd)
            if self._is_deleted():  # meanwhile
                await kernel.stop()
                raise KernelFailed(f"Context {self.name} was deleted.")
            self._kernel, self._environ = kernel, dict(environ)
            self._started += 1
            self._executions = 0
        return self._kernel

    def _is_deleted(self) -> bool:
        return self._deleted

    # --- cells --------------------------------------------------------------------------------

    async def run(self, cell: Cell) -> int:
        """Run a cell when its turn comes, and return its status."""
        if self._waiting >= MAX_WAITING:
            await cell.emit(
                events.error(
                    "TooManyCells",
                    f"{MAX_WAITING} cells already wait for context {self.name}. Wait for them, or use "
                    "another context.",
                )
            )
            return RAISED
        self._waiting += 1
        try:
            async with self._turn:
                return RAISED if cell.gone else await self._run(cell)
        finally:
            self._waiting -= 1

    async def _run(self, cell: Cell) -> int:
        if self._kernel is not None and not await self._kernel.lives():
            await self._drop_kernel()
            await cell.emit(
                _died("The kernel ended after the last cell, and its state is lost. This code did not run.")
            )
            self._start_again(cell.environ)
            return DIED
        self._running, self._ended_by = cell, None
        kernel = None
        try:
            kernel = await self._ensure(cell.environ)
            await kernel.adopt(cell.environ, self.cwd)
            if cell.env:
                await kernel.run_silently(entering(self.language, cell.env))
            cell.kernel = kernel
            self._executions += 1
            return await self._run_in(kernel, cell)
        except KernelFailed as problem:
            await cell.emit(events.error("KernelNotStarted", str(problem)))
            return DIED
        except (TimeoutError, KernelEnded):
            return await self._ended(kernel, cell)
        finally:
            cell.kernel = self._running = None

    async def _run_in(self, kernel: Kernel, cell: Cell) -> int:
        told = False

        async def sink(kind: str, content: Mapping[str, Any]) -> None:
            nonlocal told
            told = told or kind == "error"
            for event in events.events_of(kind, content):
                if self.language in VALUES_ARE_DISPLAYED and event["type"] == "data":
                    event["main"] = not any(kind.startswith("image/") for kind in event["data"])
                await cell.emit(event)

        reply = INTERRUPTED if cell.interrupted else await kernel.run(cell.code, sink)
        for page in _pages_of(reply):
            for event in events.texts("stdout", page):
                await cell.emit(event)
        failed = reply.get("status") != "ok"
        if failed and not told:  # some kernels only say so in their reply
            await cell.emit(_failure_of(reply))
        if cell.env:
            cell.kernel = None  # an interrupt is for the cell's own code
            await kernel.run_silently(leaving(self.language, cell.env))
        return RAISED if failed else OK

    async def _ended(self, kernel: Kernel | None, cell: Cell) -> int:
        """The kernel ended under a cell. It starts again, unless somebody ended it on request."""
        if self._ended_by is not None:
            await cell.emit(
                events.error(self._ended_by, f"Context {self.name} was ended while the code ran.")
            )
            return DIED
        if kernel is not None and kernel is self._kernel:
            await self._drop_kernel()
        await cell.emit(
            _died(
                "The kernel ended while the code ran, and its state is lost. A new one has taken its place."
            )
        )
        self._start_again(cell.environ)
        return DIED

    def _start_again(self, environ: Mapping[str, str]) -> None:
        """Start the next kernel now, so that the next cell need not wait for it."""

        async def start() -> None:
            with contextlib.suppress(KernelFailed):  # the next cell tries again, and says why it fails
                await self.open(environ)

        self._starting = asyncio.ensure_future(start())

    async def _drop_kernel(self) -> None:
        kernel, self._kernel = self._kernel, None
        if kernel is not None:
            await kernel.stop()

    async def abandon(self, cell: Cell, over: asyncio.Future[int]) -> None:
        """Interrupt a cell whose client is gone, until it ends. The context stays busy meanwhile."""
        cell.gone = cell.interrupted = True
        while not over.done():
            if cell.kernel is not None:
                await cell.kernel.interrupt()
            await asyncio.wait({over}, timeout=INTERRUPT_AGAIN_S)

    # --- requests -----------------------------------------------------------------------------

    async def interrupt(self) -> None:
        """Interrupt the cell whose turn it is. One that has not begun yet does not run at all."""
        if (cell := self._running) is not None:
            cell.interrupted = True
            if cell.kernel is not None:
                await cell.kernel.interrupt()

    async def restart(self) -> None:
        self._ended_by = "KernelRestarted"
        await self._drop_kernel()
        await self.open(self._environ)

    async def delete(self) -> None:
        self._ended_by, self._deleted = "ContextDeleted", True
        await self._drop_kernel()


def _died(text: str) -> dict[str, Any]:
    return events.error("KernelDied", text)


def _failure_of(reply: Mapping[str, Any]) -> dict[str, Any]:
    """The error of a reply alone. Bash's is the exit status of the last command."""
    name, value = reply.get("ename") or "Error", reply.get("evalue") or reply.get("status") or ""
    if reply.get("status") == "error" and str(value).isdigit():
        name, value = "ExitStatus", f"The last command failed with exit status {value}."
    return events.error(name, value, reply.get("traceback") or ())


def _pages_of(reply: Mapping[str, Any]) -> list[str]:
    """What the kernel wants to be shown in a pager, such as the help on an object."""
    payload = reply.get("payload")
    pages = [each for each in payload if isinstance(each, dict)] if isinstance(payload, list) else []
    texts = [each.get("data", {}).get("text/plain") for each in pages if each.get("source") == "page"]
    return [text for text in texts if isinstance(text, str)]
