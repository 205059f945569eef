"""``Kernel``: one process that speaks the Jupyter protocol, and the messages between it and the bridge."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel
from jupyter_client.manager import AsyncKernelManager

from sandlot.worker.contexts.bridge import late
from sandlot.worker.contexts.bridge.languages import SPECIFICATIONS, TCP_ONLY, adopting, loading

READY_WITHIN_S = 60.0
# Between two looks whether the kernel still lives, while something runs in it.
LOOK_EVERY_S = 0.05
# For a message that should have come with another one, or from a process that has just died.
STRAGGLER_S = 1.0
# For a silent execution, such as a change of variables.
SILENT_WITHIN_S = 10.0
# Not passed on to a running kernel: each command has its own.
NOT_ADOPTED = {"PWD", "OLDPWD", "SHLVL", "_", "TERM", "LINES", "COLUMNS"}
SYSTEM_FOLDERS = [
    "/usr/local/share/jupyter/kernels",
    "/usr/share/jupyter/kernels",
    "/opt/conda/share/jupyter/kernels",
]

_NO_REPLY = {
    "status": "error",
    "ename": "CellRefused",
    "evalue": "The kernel could not read the code, or ended its run without a result.",
}
# Python's name for it, which all languages get for code that had no chance to notice.
INTERRUPTED = {"status": "error", "ename": "KeyboardInterrupt", "evalue": "The code was interrupted."}

Sink = Callable[[str, Mapping[str, Any]], Awaitable[None]]


class KernelEnded(Exception):
    """The kernel's process is gone."""


class KernelFailed(Exception):
    """The kernel could not be started."""


def available(folder: str) -> list[str]:
    """The languages whose kernels are installed, in a folder of the system or in the bridge's own."""
    found = _specifications(folder).find_kernel_specs()
    return [language for language, name in SPECIFICATIONS.items() if name in found]


def _specifications(folder: str) -> KernelSpecManager:
    # Not the workspace's: what a session has left there must not decide how its kernels start.
    return KernelSpecManager(kernel_dirs=[*SYSTEM_FOLDERS, folder + "/kernels"], ensure_native_kernel=False)


class _Running:
    def __init__(self, sink: Sink | None) -> None:
        self.sink = sink
        self.reply: dict[str, Any] | None = None
        self.idle = False
        self.since = 0.0  # when the first of both came
        self.begun = False
        self.interrupted = False
        self.over = asyncio.Event()

    def check(self) -> None:
        self.since = self.since or time.monotonic()
        if self.idle and self.reply is not None:
            self.over.set()

    @property
    def lacks_the_other(self) -> bool:
        """Whether one of both did not come. A kernel may fail to reply, for example to code with a NUL."""
        return self.since > 0 and time.monotonic() - self.since > STRAGGLER_S


class Kernel:
    """``folder``: where its sockets are. ``number``: which kernel of the bridge it is."""

    def __init__(self, language: str, folder: str, number: int) -> None:
        self.language = language
        self._folder = folder
        self._name = f"{folder}/kernel{number}"
        self._running: dict[str, _Running] = {}
        self._code: _Running | None = None  # the client's own, while it runs
        self._readers: list[asyncio.Task[None]] = []
        self._environ: dict[str, str] = {}
        self._place: tuple[int, int] | None = None  # which folder it was started in, whatever its name
        self._paused = False

    async def start(self, environ: Mapping[str, str], cwd: str) -> None:
        name = SPECIFICATIONS[self.language]
        specifications = _specifications(self._folder)
        self._manager = AsyncKernelManager(kernel_name=name, kernel_spec_manager=specifications)
        if name not in TCP_ONLY:
            self._manager.transport, self._manager.ip = "ipc", self._name
        self._manager.connection_file = self._name + ".json"
        try:
            arguments = self._manager.kernel_spec.argv
        except NoSuchKernel:
            raise KernelFailed(f"This sandbox has no kernel for {self.language}.") from None
        if name == "python3":
            # The session's own Python: that of the image's virtual environment, if it has one.
            arguments[0] = shutil.which("python3", path=environ.get("PATH")) or arguments[0]
            arguments.append("--HistoryManager.enabled=False")
        self._environ, self._place = dict(environ), _place_of(cwd)
        own = {
            # Plots are shown, whatever the image says for programs.
            "MPLBACKEND": "module://matplotlib_inline.backend_inline",
            "IPYTHONDIR": self._folder + "/ipython",
            "JUPYTER_RUNTIME_DIR": self._folder,
            "DENO_DIR": environ.get("DENO_DIR", self._folder + "/deno"),
            "DENO_NO_UPDATE_CHECK": "1",
            "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        }
        if name == "deno":
            own["NO_COLOR"] = "1"
        try:
            await self._manager.start_kernel(
                env={**environ, **own},
                cwd=cwd,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
            )
        except (OSError, ValueError, RuntimeError) as problem:
            raise KernelFailed(f"The kernel for {self.language} could not be started: {problem}") from problem
        self._note_pid()
        self._client = self._manager.client()
        self._client.start_channels(stdin=False, hb=False)
        self._readers = [asyncio.create_task(self._read_iopub()), asyncio.create_task(self._read_shell())]
        try:
            await self._become_ready()
            await self.run_silently(loading(self.language))
        except (TimeoutError, KernelEnded):
            await self.stop()
            raise KernelFailed(f"The kernel for {self.language} ended while it started.") from None
        except BaseException:
            await self.stop()
            raise

    async def _become_ready(self) -> None:
        """Ask until both channels answer: a subscription may begin after the first messages."""
        deadline = time.monotonic() + READY_WITHIN_S
        while time.monotonic() < deadline:
            asked = _Running(None)
            self._running[self._client.kernel_info()] = asked
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(asked.over.wait(), 0.5)
                return
            if not await self._lives():
                raise KernelFailed(f"The kernel for {self.language} ended while it started.")
        raise KernelFailed(f"The kernel for {self.language} did not start within {READY_WITHIN_S:g} s.")

    @property
    def _process(self) -> Any:
        return getattr(self._manager.provisioner, "process", None)

    async def _lives(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _note_pid(self) -> None:
        """For a later bridge, if this one is killed before its kernels end."""
        with open(self._name + ".pid", "w") as file:
            file.write(str(self._process.pid))

    # --- running ------------------------------------------------------------------------------

    async def lives(self) -> bool:
        return await self._lives()

    async def run(self, code: str, sink: Sink) -> dict[str, Any]:
        """Run code, and give ``sink`` each message about it. Returns the content of the kernel's reply."""
        self._code = _Running(sink)
        try:
            return await self._execute(code, self._code, silent=False)
        finally:
            self._code = None

    async def run_silently(self, code: str) -> None:
        await asyncio.wait_for(self._execute(code, _Running(None), silent=True), SILENT_WITHIN_S)

    async def _execute(self, code: str, running: _Running, *, silent: bool) -> dict[str, Any]:
        asked = self._client.execute(
            code, silent=silent, store_history=not silent, allow_stdin=False, stop_on_error=False
        )
        self._running[asked] = running
        try:
            while not running.over.is_set():
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(running.over.wait(), LOOK_EVERY_S)
                if running.over.is_set() or self._paused:
                    continue
                if not await self._lives():
                    with contextlib.suppress(asyncio.TimeoutError):
                        await asyncio.wait_for(running.over.wait(), STRAGGLER_S / 4)
                    if running.reply is None:
                        raise KernelEnded
                    break
                if running.lacks_the_other:
                    break
            if running.sink is not None and self.language in late.LANGUAGES:
                await self._take_late(running.sink)
        finally:
            self._running.pop(asked, None)
        return running.reply or (INTERRUPTED if running.interrupted else _NO_REPLY)

    async def _take_late(self, sink: Sink) -> None:
        fence = late.Fence(sink)
        asked = self._client.execute(fence.code, silent=True, store_history=False, allow_stdin=False)
        self._running[asked] = _Running(fence.take)
        try:
            while not fence.reached.is_set():
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(fence.reached.wait(), late.WITHIN_S)
                if not self._paused:
                    break
        finally:
            self._running.pop(asked, None)

    async def adopt(self, environ: Mapping[str, str], cwd: str) -> None:
        """Give the kernel the session's variables, and its folder if another one has taken its place.

        A kernel of a warm sandbox was started before there was a session.
        """
        wanted = {name: value for name, value in environ.items() if name not in NOT_ADOPTED}
        known = {name: value for name, value in self._environ.items() if name not in NOT_ADOPTED}
        new = {name: value for name, value in wanted.items() if known.get(name) != value}
        gone = [name for name in known if name not in wanted]
        place = _place_of(cwd)
        moved = cwd if place is not None and place != self._place else None
        if new or gone or moved is not None:
            await self.run_silently(adopting(self.language, new, gone, moved))
            self._environ, self._place = dict(environ), place

    async def interrupt(self) -> None:
        """Interrupt the client's code. Before it begins, the kernel would ignore that, so it waits."""
        self.resume()
        if (running := self._code) is not None and not running.over.is_set():
            running.interrupted = True
            if running.begun:
                await self._interrupt_process()

    async def _interrupt_process(self) -> None:
        with contextlib.suppress(OSError, RuntimeError):
            await self._manager.interrupt_kernel()

    def pause(self) -> None:
        """Stop the kernel: what it prints is not being read, and would fill the memory."""
        self._paused = True
        self._signal_group(signal.SIGSTOP)

    def resume(self) -> None:
        if self._paused:
            self._paused = False
            self._signal_group(signal.SIGCONT)

    def _signal_group(self, number: int) -> None:
        with contextlib.suppress(OSError, AttributeError):
            os.killpg(self._process.pid, number)  # it leads a session of its own

    async def stop(self) -> None:
        """Kill the kernel and what it has started in its process group."""
        for reader in self._readers:
            reader.cancel()
        self._signal_group(signal.SIGKILL)
        with contextlib.suppress(OSError, RuntimeError):
            await self._manager.shutdown_kernel(now=True)
        if self._readers:
            self._client.stop_channels()
            await asyncio.wait(self._readers)
        with contextlib.suppress(OSError):
            os.unlink(self._name + ".pid")

    # --- messages -----------------------------------------------------------------------------

    async def _read_iopub(self) -> None:
        while True:
            message = await _next(self._client.get_iopub_msg)
            running = self._running.get(_parent_of(message))
            if running is None:
                continue
            kind, content = message.get("msg_type"), message.get("content")
            if kind == "execute_input":
                running.begun = True
                if running.interrupted:
                    await self._interrupt_process()
            if kind == "status" and isinstance(content, dict):
                if content.get("execution_state") == "idle":
                    running.idle = True
                    running.check()
            elif running.sink is not None and isinstance(kind, str) and isinstance(content, dict):
                await running.sink(kind, content)

    async def _read_shell(self) -> None:
        while True:
            message = await _next(self._client.get_shell_msg)
            running = self._running.get(_parent_of(message))
            if running is not None:
                content = message.get("content")
                running.reply = content if isinstance(content, dict) else {}
                running.check()


async def _next(receive: Callable[[], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
    """The next message. One that cannot be read is dropped: the program in the kernel may send anything."""
    while True:
        try:
            return await receive()
        except (ValueError, TypeError, KeyError, IndexError):
            await asyncio.sleep(0)


def _parent_of(message: Mapping[str, Any]) -> str:
    parent = message.get("parent_header")
    return str(parent.get("msg_id")) if isinstance(parent, dict) else ""


def _place_of(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
