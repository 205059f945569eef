"""The bridge's socket: one request in JSON for each connection, and what answers it.

A cell's answer is its events, one in each line, and at the end a line such as ``=0`` with its status. All
other answers are one line of JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import glob
import json
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

from sandlot.worker.contexts.bridge import events
from sandlot.worker.contexts.bridge.context import RAISED, Cell, Context
from sandlot.worker.contexts.bridge.kernel import Kernel, KernelFailed, available

# Code of 2 MiB, in which each character may need six, and the variables.
MAX_REQUEST_BYTES = 16 * 1024 * 1024
REQUEST_WITHIN_S = 30.0
MAX_CONNECTIONS = 256
# Of events that a client has not taken. Beyond it the kernel stands still.
MAX_PENDING_BYTES = 2 * 1024 * 1024
# Between two looks whether the socket is still there: a program in the sandbox may empty /tmp.
LOOK_EVERY_S = 1.0


class Refused(Exception):
    """A request that cannot be done. ``code`` says why, for the worker."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Bridge:
    """``bash_kernel``: the program of the kernel for bash."""

    def __init__(self, folder: str, workspace: str, max_contexts: int, bash_kernel: str) -> None:
        self._folder = folder
        self._socket = folder + "/socket"
        self._workspace = workspace
        self._max_contexts = max_contexts
        self._bash_kernel = bash_kernel
        self._contexts: dict[str, Context] = {}
        self._kernels = 0
        self._connections = 0
        self._tasks: set[asyncio.Future[Any]] = set()
        self.languages: list[str] = []

    async def serve(self) -> None:
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        os.chmod(self._folder, 0o700)
        self._end_leftovers()
        self._install_bash()
        self.languages = available(self._folder)
        server = await self._listen()
        sys.stdout.write(f"ready {json.dumps({'languages': self.languages})}\n")
        sys.stdout.flush()
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            if not os.path.exists(self._socket):  # noqa: ASYNC240  # in memory
                server.close()
                os.makedirs(self._folder, mode=0o700, exist_ok=True)
                server = await self._listen()

    def _install_bash(self) -> None:
        """Make the kernel for bash that comes with the bridge known. An image may have its own."""
        folder = self._folder + "/kernels/bash"
        os.makedirs(folder, exist_ok=True)
        program = folder + "/bash_kernel.py"
        with open(program, "w") as file:
            file.write(self._bash_kernel)
        specification = {
            "argv": [sys.executable, program, "-f", "{connection_file}"],
            "display_name": "Bash",
            "language": "bash",
        }
        with open(folder + "/kernel.json", "w") as file:
            json.dump(specification, file)

    async def _listen(self) -> asyncio.AbstractServer:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._socket)
        return await asyncio.start_unix_server(
            self._connected, self._socket, limit=MAX_REQUEST_BYTES, backlog=MAX_CONNECTIONS
        )

    def _end_leftovers(self) -> None:
        """Kill the kernels of an earlier bridge. A process that has got the same id since is left alone."""
        for path in glob.glob(glob.escape(self._folder) + "/kernel*.pid"):
            with contextlib.suppress(OSError, ValueError):
                with open(path) as file:
                    pid = int(file.read(20))
                with open(f"/proc/{pid}/cmdline") as file:
                    if path.removesuffix(".pid") in file.read(100_000):
                        os.killpg(pid, signal.SIGKILL)
        for path in glob.glob(glob.escape(self._folder) + "/kernel*"):
            with contextlib.suppress(OSError):
                os.unlink(path)

    # --- connections --------------------------------------------------------------------------

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._connections >= MAX_CONNECTIONS:
            writer.close()
            return
        self._connections += 1
        writer.transport.set_write_buffer_limits(high=MAX_PENDING_BYTES)
        try:
            line = await asyncio.wait_for(reader.readline(), REQUEST_WITHIN_S)
            await self._answer(_parsed(line), reader, writer)
            await writer.drain()
        except (TimeoutError, OSError, ValueError):
            pass  # the client broke off, or it is none of ours
        finally:
            self._connections -= 1
            writer.close()

    async def _answer(
        self, request: Mapping[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if request.get("op") == "run":
            await self._run(request, reader, writer)
            return
        try:
            answer = await self._control(request)
        except Refused as refused:
            answer = {"error": refused.code, "message": str(refused)}
        except KernelFailed as failed:
            answer = {"error": "not_started", "message": str(failed)}
        writer.write(json.dumps(answer).encode() + b"\n")

    async def _run(
        self, request: Mapping[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        cell = Cell(
            _text(request, "code"),
            lambda event: self._emit(cell, writer, event),
            _table(request, "environ"),
            _table(request, "env"),
        )
        try:
            context = self._context_for(_text(request, "context"), _text(request, "language"))
        except Refused as refused:
            await cell.emit(events.error("ContextRefused", str(refused)))
            writer.write(b"=%d\n" % RAISED)
            return
        over = self._background(context.run(cell))
        gone = asyncio.ensure_future(reader.read(1))  # a client sends nothing more, so this is its end
        await asyncio.wait({over, gone}, return_when=asyncio.FIRST_COMPLETED)
        if over.done():
            gone.cancel()
            writer.write(b"=%d\n" % over.result())
        else:
            self._background(context.abandon(cell, over))

    async def _emit(self, cell: Cell, writer: asyncio.StreamWriter, event: Mapping[str, Any]) -> None:
        if cell.gone or writer.is_closing():
            return
        writer.write(events.line_of(event))
        if writer.transport.get_write_buffer_size() < MAX_PENDING_BYTES:
            return
        kernel = cell.kernel
        if kernel is not None:
            kernel.pause()
        try:
            await writer.drain()
        except OSError:
            cell.gone = True
        finally:
            if kernel is not None:
                kernel.resume()

    def _background(self, work: Any) -> asyncio.Future[Any]:
        task: asyncio.Future[Any] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # --- contexts -----------------------------------------------------------------------------

    async def _control(self, request: Mapping[str, Any]) -> dict[str, Any]:
        operation = request.get("op")
        if operation == "list":
            return {"contexts": [context.summary() for context in self._contexts.values()]}
        name = _text(request, "context")
        if operation == "create":
            return await self._create(name, _text(request, "language"), request.get("cwd"))
        context = self._contexts.get(name)
        if operation == "delete":
            if context is not None:
                del self._contexts[name]
                await context.delete()
            return {}
        if context is None:
            raise Refused("unknown", f"There is no context {name}.")
        if operation == "interrupt":
            await context.interrupt()
        elif operation == "restart":
            await context.restart()
        else:
            raise Refused("bad_request", "Unknown operation.")
        return {"context": context.summary()}

    async def _create(self, name: str, language: str, cwd: Any) -> dict[str, Any]:
        known = self._contexts.get(name)
        folder = cwd if isinstance(cwd, str) else self._workspace
        if known is not None:
            if (known.language, known.cwd) != (language, folder):
                raise Refused("exists", f"Context {name} exists already, with another language or folder.")
        elif not os.path.isdir(folder):  # noqa: ASYNC240  # a moment
            raise Refused("cwd", f"The folder {folder} does not exist.")
        context = known or self._add(name, language, folder)
        try:
            await context.open(os.environ)
        except KernelFailed:
            if known is None:
                self._contexts.pop(name, None)
            raise
        return {"context": context.summary()}

    def _context_for(self, name: str, language: str) -> Context:
        """The context of a cell. A language's own is made by the first cell."""
        context = self._contexts.get(name)
        if context is None:
            if name != language:
                raise Refused("unknown", f"There is no context {name}.")
            return self._add(name, language, self._workspace)
        if context.language != language:
            raise Refused("exists", f"Context {name} speaks {context.language}, not {language}.")
        return context

    def _add(self, name: str, language: str, cwd: str) -> Context:
        if language not in self.languages:
            raise Refused("language", f"This sandbox has no kernel for {language}.")
        if len(self._contexts) >= self._max_contexts:
            raise Refused(
                "limit",
                f"The session already has {self._max_contexts} contexts. Delete one that is not needed.",
            )
        context = self._contexts[name] = Context(name, language, cwd, self._new_kernel)
        return context

    def _new_kernel(self, language: str) -> Kernel:
        self._kernels += 1
        return Kernel(language, self._folder, self._kernels)


def _parsed(line: bytes) -> dict[str, Any]:
    request = json.loads(line)
    if not isinstance(request, dict):
        raise ValueError("a request is a JSON object")
    return request


def _text(request: Mapping[str, Any], name: str) -> str:
    value = request.get(name)
    if not isinstance(value, str):
        raise ValueError(f"{name} must be text")
    return value


def _table(request: Mapping[str, Any], name: str) -> dict[str, str]:
    value = request.get(name) or {}
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be a table")
    return {str(key): str(each) for key, each in value.items()}


def main() -> None:
    folder, workspace, max_contexts, bash_kernel = sys.argv[1:5]
    asyncio.run(Bridge(folder, workspace, int(max_contexts), bash_kernel).serve())
