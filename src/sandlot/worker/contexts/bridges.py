"""``Bridges``: one bridge in each sandbox that has run a cell. It starts once, and a restart finds it again.

What a bridge says comes out of a sandbox: it is bounded, and only what has the right form is taken.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any, Final
from weakref import WeakKeyDictionary

from sandlot.domain.code.contexts import Context, Language, check_context_id
from sandlot.domain.computer import Execution
from sandlot.domain.errors import (
    Conflict,
    InvalidRequest,
    LinkInterrupted,
    NotFound,
    SandlotError,
    Unavailable,
    Unsupported,
)
from sandlot.domain.execution import Channel, Exited, Output
from sandlot.providers.base import Sandbox
from sandlot.worker.contexts.program import (
    BRIDGE_EXEC_ID,
    NO_JUPYTER,
    OUTPUT_LIMIT_BYTES,
    SOCKET,
    bridge_request,
)

# A busy machine starts Python and its libraries in seconds.
READY_WITHIN_S: Final = 60.0
# A kernel has a minute to start (bridge/kernel.py).
ANSWER_WITHIN_S: Final = 75.0
MAX_ANSWER_BYTES: Final = 256 * 1024
# 127: the image has no python3.
_WITHOUT_KERNELS: Final = (NO_JUPYTER, 127)
# Beyond any number that a bridge counts.
_MAX_COUNT: Final = 2**53

_ERRORS: Final[Mapping[str, type[SandlotError]]] = {
    "unknown": NotFound,
    "exists": Conflict,
    "limit": Conflict,
    "cwd": InvalidRequest,
    "language": Unsupported,
    "not_started": Unavailable,
}


class NoKernels(Unsupported):
    """The sandbox's image has no kernels."""


class Bridge:
    """The bridge of one sandbox. It does not keep the sandbox: calls bring it."""

    def __init__(self) -> None:
        self._starting = asyncio.Lock()
        self._watcher: asyncio.Task[None] | None = None
        self.languages: tuple[Language, ...] = ()
        self.by_context: dict[str, Language] = {}
        # Whether an earlier bridge died, which no cell has been told.
        self.state_lost = False

    async def ready(self, sandbox: Sandbox) -> None:
        """Return once the bridge runs, however many callers wait for it."""
        if self._watcher is not None and not self._watcher.done():
            return
        async with self._starting:
            if self._watcher is None or self._watcher.done():
                try:
                    async with asyncio.timeout(READY_WITHIN_S):
                        await self._watch(await self._find_or_start(sandbox))
                except TimeoutError:
                    raise Unavailable(
                        f"The kernels of this session did not start within {READY_WITHIN_S:g} s. Retry.",
                        retry_after_s=2.0,
                    ) from None
                except _Ended as ended:
                    raise ended.error() from None

    async def _find_or_start(self, sandbox: Sandbox) -> Execution:
        known = [each for each in await sandbox.list_execs() if each.exec_id == BRIDGE_EXEC_ID]
        if known and known[0].running:
            return await sandbox.attach(BRIDGE_EXEC_ID)
        if known:
            await sandbox.kill(BRIDGE_EXEC_ID)  # its kernels have not ended with it
            await sandbox.forget(BRIDGE_EXEC_ID)
            self.by_context = {}
            # One that never said that it was ready had no kernels to lose.
            self.state_lost = known[0].exit_code not in _WITHOUT_KERNELS
        return await sandbox.start(bridge_request())

    async def _watch(self, execution: Execution) -> None:
        """Wait until the bridge says that it is ready, then go on reading in the background."""
        ready: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        watcher = asyncio.create_task(_read(execution, ready), name="watch the kernels of a session")
        try:
            self.languages = _languages_in(await ready)
        except BaseException:
            watcher.cancel()
            raise
        self._watcher = watcher

    # --- requests -----------------------------------------------------------------------------

    async def ask(self, sandbox: Sandbox, request: Mapping[str, Any]) -> dict[str, Any]:
        await self.ready(sandbox)
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                body = await _exchange(sandbox, json.dumps(request).encode() + b"\n")
        except (TimeoutError, OSError, LinkInterrupted):
            raise Unavailable(
                "The kernels of this session did not answer. Retry, or restart the context.",
                retry_after_s=1.0,
            ) from None
        problem = body.get("error")
        if isinstance(problem, str):
            message = body.get("message")
            text = message if isinstance(message, str) else "The kernels refused the request."
            raise _ERRORS.get(problem, SandlotError)(text[:500])
        return body

    async def close(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)


async def _exchange(sandbox: Sandbox, line: bytes) -> dict[str, Any]:
    stream = await sandbox.connect(SOCKET, network="unix")
    try:
        await stream.send(line)
        answer = bytearray()
        while b"\n" not in answer and len(answer) <= MAX_ANSWER_BYTES:
            piece = await stream.receive()
            if not piece:
                break
            answer += piece
    finally:
        stream.abort()
    try:
        body = json.loads(bytes(answer).partition(b"\n")[0])
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise Unavailable("The kernels of this session did not answer properly. Retry.", retry_after_s=1.0)
    return body


class Bridges:
    def __init__(self) -> None:
        self._by_sandbox: WeakKeyDictionary[Sandbox, Bridge] = WeakKeyDictionary()

    def of(self, sandbox: Sandbox) -> Bridge:
        bridge = self._by_sandbox.get(sandbox)
        if bridge is None:
            bridge = self._by_sandbox[sandbox] = Bridge()
        return bridge

    async def warm(self, sandbox: Sandbox, languages: tuple[Language, ...]) -> None:
        """Start these kernels in a sandbox that has no session yet."""
        for language in languages:
            await self.of(sandbox).ask(sandbox, {"op": "create", "context": language, "language": language})

    async def close(self) -> None:
        """Leave the bridges: the next process finds them."""
        for bridge in list(self._by_sandbox.values()):
            await bridge.close()


class _Ended(Exception):
    """The bridge has ended. ``said``: what it wrote."""

    def __init__(self, code: int, said: bytes) -> None:
        super().__init__(code)
        self._code = code
        self._said = said

    def error(self) -> SandlotError:
        if self._code in _WITHOUT_KERNELS:
            return NoKernels("The image of this session has no kernels.")
        said = self._said[-300:].decode(errors="replace").strip()
        return Unavailable(
            f"The kernels of this session could not be started (exit status {self._code}): {said}",
            retry_after_s=2.0,
        )


async def _read(execution: Execution, ready: asyncio.Future[bytes]) -> None:
    """Read what the bridge writes, until it ends. Its first line makes ``ready``."""
    said = bytearray()
    try:
        async with aclosing(execution.events()) as events:  # type: ignore[type-var]
            async for event in events:
                if isinstance(event, Output) and len(said) < OUTPUT_LIMIT_BYTES:
                    said += event.data
                    if event.channel is Channel.STDOUT and b"\n" in said and not ready.done():
                        line = bytes(said).partition(b"\n")[0]
                        if line.startswith(b"ready "):
                            ready.set_result(line)
                elif isinstance(event, Exited):
                    if not ready.done():
                        ready.set_exception(_Ended(event.code, bytes(said)))
                    return
    except SandlotError as error:
        if not ready.done():
            ready.set_exception(error)
    finally:
        await execution.detach()
        if not ready.done():
            ready.cancel()


def _languages_in(line: bytes) -> tuple[Language, ...]:
    try:
        body = json.loads(line.removeprefix(b"ready "))
        names = body["languages"] if isinstance(body, dict) else []
    except (ValueError, KeyError, RecursionError):
        names = []
    known = (
        set(names) & set(Language)
        if isinstance(names, list) and all(isinstance(n, str) for n in names)
        else ()
    )
    return tuple(language for language in Language if language in known)


def context_of(body: Any) -> Context | None:
    """A context as a bridge describes it; None if it is not properly described."""
    try:
        match body:
            case {"id": str(name), "language": str(language), "cwd": str(cwd), "busy": bool(busy)}:
                check_context_id(name)
                counts = [body.get("executions"), body.get("restarts")]
                executions, restarts = (
                    count if type(count) is int and 0 <= count <= _MAX_COUNT else 0 for count in counts
                )
                return Context(name, Language(language), cwd[:4096], busy, executions, restarts)
    except (InvalidRequest, ValueError):
        pass
    return None
