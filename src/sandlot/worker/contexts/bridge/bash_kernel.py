"""A Jupyter kernel for bash, as a program of its own: the bridge writes it beside its socket and starts it.

One bash lives as long as the kernel. It reads each cell from a file, so that a cell may be any script, and
says at the end how it went, on a descriptor of its own. It runs as an interactive shell without a terminal:
such a shell gives up a cell when it is interrupted, and keeps its variables.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from ipykernel.kernelapp import IPKernelApp
from ipykernel.kernelbase import Kernel

STATUS_FD = 198  # above those that scripts use
PIECE_BYTES = 64 * 1024
# After an interrupt: between two steps that make bash say that it has given up the cell.
STEP_S = 0.1
STEPS = 10
# Of 10 ms. A process that is younger when an interrupt comes may have lost it.
STARTING_TICKS = 10
INTERRUPTED_STATUS = 130  # as bash gives it to what SIGINT has ended
ENDED_WITHIN_S = 1.0


class Shell:
    def __init__(self, folder: str) -> None:
        self._cell = os.path.join(folder, "cell")
        self._number = 0
        status, theirs = os.pipe()
        os.set_inheritable(theirs, True)
        os.dup2(theirs, STATUS_FD, inheritable=True)
        os.close(theirs)
        # A kernel ignores interrupts between cells, and a shell that inherits that does so for ever.
        ignored = signal.signal(signal.SIGINT, signal.default_int_handler)
        self.process: Any = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "--noediting", "-i"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PS1": "", "PS2": "", "PS0": "", "PROMPT_COMMAND": ""},
            pass_fds=(STATUS_FD,),
            bufsize=0,
        )
        signal.signal(signal.SIGINT, ignored)
        os.close(STATUS_FD)
        self._status = os.fdopen(status, "rb", buffering=0)
        decoder = codecs.getincrementaldecoder("utf-8")
        self._outputs: dict[Any, Any] = {
            self.process.stdout: ("stdout", decoder("replace")),
            self.process.stderr: ("stderr", decoder("replace")),
        }
        for file in (self._status, *self._outputs):
            os.set_blocking(file.fileno(), False)
        self.run(":", lambda name, text: None)  # takes away what bash says about its terminal

    def run(self, code: str, write: Any) -> int | None:
        """Run code, and return its exit status. None if the shell has ended."""
        self._number += 1
        try:
            with open(self._cell, "w", encoding="utf-8", errors="surrogateescape") as file:
                file.write(code + "\n")
            self._ask(f". {self._cell} </dev/null {STATUS_FD}>&-\n")
        except KeyboardInterrupt:  # bash may have begun or not
            status = self._wait(write, interrupted=True)
            return INTERRUPTED_STATUS if status == 0 else status
        return self._wait(write)

    def _ask(self, line: str = "") -> None:
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(f"{line}printf '%d %d\\n' {self._number} $? >&{STATUS_FD}\n".encode())

    def _wait(self, write: Any, *, interrupted: bool = False) -> int | None:
        said, steps = b"", self._after_an_interrupt() if interrupted else iter(())
        with selectors.DefaultSelector() as selector:
            for file in (self._status, *self._outputs):
                selector.register(file, selectors.EVENT_READ)
            while True:
                try:
                    for key, _ in selector.select(next(steps, None)):
                        if key.fileobj is not self._status:
                            if not self._pass_on(key.fileobj, write):
                                selector.unregister(key.fileobj)
                            continue
                        piece = self._status.read(PIECE_BYTES)
                        if piece == b"":  # every process that had the descriptor is gone: bash has ended
                            self._drain(write)
                            return None
                        said += piece or b""
                    status = self._status_in(said)
                except KeyboardInterrupt:
                    steps = self._after_an_interrupt()
                    continue
                if status is not None:
                    self._drain(write)
                    return status

    def _after_an_interrupt(self) -> Iterator[float]:
        """Takes the steps that make bash end the cell, and yields how long to wait before the next one.

        Bash may have dropped the question with the cell, so it is asked again. And a process that was just
        being started has lost the interrupt, and bash then goes on. So these get another one. A program that
        runs already gets no second one: it may be saving its work because of the first.
        """
        since = _now() - STARTING_TICKS
        for step in (self._ask, *(partial(self._interrupt, since), self._ask) * STEPS):
            due = time.monotonic() + STEP_S
            while (left := due - time.monotonic()) > 0:
                yield left
            step()

    def _interrupt(self, since: int) -> None:
        young = [pid for pid, started in _processes().items() if started >= since and pid != os.getpid()]
        for pid in (*young, self.process.pid) if young else ():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGINT)

    def _status_in(self, said: bytes) -> int | None:
        for line in said.split(b"\n")[:-1]:
            number, _, status = line.partition(b" ")
            if number == str(self._number).encode():
                return int(status)
        return None

    def _drain(self, write: Any) -> None:
        """Pass on what was written before the status was."""
        for file in self._outputs:
            while self._pass_on(file, write, once=False):
                pass

    def _pass_on(self, file: Any, write: Any, *, once: bool = True) -> bool:
        """Pass on one piece. False at the end, and unless ``once`` if there is nothing now."""
        piece = file.read(PIECE_BYTES)
        if piece:
            name, decoder = self._outputs[file]
            write(name, decoder.decode(piece))
        return bool(piece) or (once and piece is None)

    def end(self) -> int:
        try:
            code: int = self.process.wait(ENDED_WITHIN_S)
        except subprocess.TimeoutExpired:  # it has closed the descriptor, and lives
            self.process.kill()
            code = self.process.wait()
        for file in (self._status, self.process.stdin, *self._outputs):
            with contextlib.suppress(OSError):
                file.close()
        return code


def _now() -> int:
    """The time as `/proc` gives it, which may be a clock of its own: a process that starts now has it."""
    with subprocess.Popen(["bash", "-c", ":"]) as starting:
        return _started(starting.pid)[1]


def _processes() -> dict[int, int]:
    """When each process of this group was started, by its id."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            group, started = _started(int(name))
            if group == os.getpgrp():
                found[int(name)] = started
    return found


def _started(pid: int) -> tuple[int, int]:
    """A process's group, and when it was started, in ticks."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    return int(fields[2]), int(fields[19])


class BashKernel(Kernel):  # type: ignore[misc]  # where it is installed, it has a type
    implementation = "sandlot-bash"
    implementation_version = "1"
    language_info = {"name": "bash", "mimetype": "text/x-sh", "file_extension": ".sh"}  # noqa: RUF012
    banner = "bash"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._folder = tempfile.mkdtemp(prefix="bash-", dir=os.path.dirname(os.path.abspath(__file__)))
        self._shell = Shell(self._folder)

    @property
    def _counted(self) -> dict[str, int]:
        return {"execution_count": self.execution_count}

    def do_execute(
        self,
        code: str,
        silent: bool,
        store_history: bool = True,
        user_expressions: Any = None,
        allow_stdin: bool = False,
        **options: Any,
    ) -> dict[str, Any]:
        def write(name: str, text: str) -> None:
            if not silent:
                self.send_response(self.iopub_socket, "stream", {"name": name, "text": text})

        status = self._shell.run(code, write)
        if status == 0:
            return {"status": "ok", **self._counted, "payload": [], "user_expressions": {}}
        name, value = "ExitStatus", f"The last command failed with exit status {status}."
        if status is None:
            name = "ShellEnded"
            ended = self._shell.end()
            value = (
                f"The shell ended with exit status {ended}. The next cell gets a new one, without its state."
            )
            self._shell = Shell(self._folder)
        error = {"ename": name, "evalue": value, "traceback": []}
        if not silent:
            self.send_response(self.iopub_socket, "error", error)
        return {"status": "error", **self._counted, **error}


if __name__ == "__main__":
    IPKernelApp.launch_instance(kernel_class=BashKernel)
