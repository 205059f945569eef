"""``PolicyProcess``: decides about commands in a process of its own, within a bound of time.

The parser is a C library that reads text of strangers. Some texts make it slow by design, it cannot be
interrupted, and a fault in it would take the whole process down. So it has a process without secrets, which
is killed when it takes too long. What it could not decide is not understood.
"""

from __future__ import annotations

import json
import os
import pickle
import select
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from sandlot.bash.budget import Budget
from sandlot.domain.errors import SandlotError, Unsupported
from sandlot.domain.policy.commands import Reading, Unclear
from sandlot.domain.policy.deciding import Decision, decide
from sandlot.domain.policy.policy import CommandPolicy

# Processor time, so that a busy machine makes no command unclear. Texts of the largest size take 0.1 s.
MAX_CPU_S: Final = 0.5
MAX_WAIT_S: Final = 10.0  # for a machine that stands still
START_S: Final = 30.0
MAX_ANSWER_BYTES: Final = 1024 * 1024
_POLL_MS: Final = 50


class PolicyProcess:
    """Decides by one policy. Threads take turns. The process starts with the first decision."""

    def __init__(self, policy: CommandPolicy) -> None:
        self.policy = policy
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def decide(
        self, command: str | None, argv: Sequence[str] | None = None, variables: Sequence[str] = ()
    ) -> Decision:
        """Decide about a command line, or about a program with its arguments.

        ``variables``: the names of variables that are set for it.
        """
        size = sum(len(text) for text in (command or "", *(argv or ()), *variables))
        if size > Budget.MAX_BYTES:
            return self._not_understood(f"is longer than {Budget.MAX_BYTES} bytes")
        asked = {"command": command, "argv": list(argv or ()), "variables": list(variables)}
        request = json.dumps(asked).encode()
        with self._lock:
            process = self._process or self._start()
            answer = self._exchange(process, request, MAX_WAIT_S)
            if answer is None:
                self._end()
                return self._not_understood("takes too long to read")
        return Decision.of_json(answer)

    def start(self) -> None:
        """Start the process now, so that the first decision does not wait for it."""
        with self._lock:
            if self._process is None:
                self._start()

    def close(self) -> None:
        with self._lock:
            self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # Its owner may be a policy object that nobody closes; the process would end with this one.
        self._end()

    def _not_understood(self, why: str) -> Decision:
        return decide(self.policy, Reading(unclear=(Unclear((), why),)))

    # --- the process --------------------------------------------------------------------------

    def _start(self) -> subprocess.Popen[bytes]:
        environment = {
            name: os.environ[name] for name in ("PATH", "LANG", "SYSTEMROOT") if name in os.environ
        }
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        self._process = process = subprocess.Popen(
            [sys.executable, "-m", "sandlot.bash"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # Ctrl-C in a terminal is not for it
        )
        if self._exchange(process, pickle.dumps(self.policy), START_S, max_cpu_s=START_S) is None:
            self._end()
            check_installed()
            raise SandlotError("The process that reads commands does not start; its stderr says why.")
        return process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:
                    continue  # it still had something for a process that is gone
        process.wait()

    def _exchange(
        self, process: subprocess.Popen[bytes], request: bytes, wait_s: float, max_cpu_s: float = MAX_CPU_S
    ) -> bytes | None:
        """Send a request and return the answer; None if the process ends or takes too long."""
        assert process.stdin is not None
        assert process.stdout is not None
        began = time.monotonic()
        cpu_began: float | None = None
        try:
            process.stdin.write(len(request).to_bytes(4) + request)
            process.stdin.flush()
        except OSError:
            return None
        received = b""
        output = process.stdout.fileno()
        poll = select.poll()
        poll.register(output, select.POLLIN)
        while len(received) < 4 or len(received) < 4 + int.from_bytes(received[:4]):
            if poll.poll(_POLL_MS):
                content = os.read(output, 65536)
                received += content
                if not content or len(received) > MAX_ANSWER_BYTES:
                    return None
            elif cpu_began is None:
                cpu_began = cpu_s(process.pid)  # most answers come before anybody has to count
            elif cpu_s(process.pid) - cpu_began > max_cpu_s or time.monotonic() - began > wait_s:
                return None
        return received[4:]


def cpu_s(pid: int) -> float:
    """The processor time that a process has used; 0 where the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def check_installed() -> None:
    """Raise ``Unsupported`` if the parser is not installed."""
    try:
        import tree_sitter  # noqa: F401
        import tree_sitter_bash  # noqa: F401
    except ModuleNotFoundError as error:
        raise Unsupported(
            f"Command policies need {error.name}, which is not installed. In the folder of your clone of "
            "Sandlot, run: pip install '.[policy]'"
        ) from error
