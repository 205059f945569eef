"""A server whose processes are forks of one that has imported everything: it starts in a fifth of the time.

A fork is a process like any other. It has a state of its own on disk and nothing else, and dies alone.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sandlot.config.reading import server_settings
from sandlot.wiring import serve
from tests.faults.rig import ServerProcess
from tests.workspaces.dying_server import die_at

_NUMBER = struct.Struct("=i")


class Fork:
    """As much of ``subprocess.Popen`` as a ``ServerProcess`` needs. One at a time."""

    def __init__(self, parent: subprocess.Popen[bytes], order: Mapping[str, Any]) -> None:
        assert parent.stdin is not None
        assert parent.stdout is not None
        self._answers = parent.stdout.fileno()
        parent.stdin.write(json.dumps(order).encode() + b"\n")
        self.pid = self._read()
        self._code: int | None = None

    def poll(self) -> int | None:
        return self._ended(0)

    def wait(self, timeout: float) -> int:
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("the fork", timeout)
        return code

    def _ended(self, seconds: float) -> int | None:
        if self._code is None and select.select([self._answers], [], [], seconds)[0]:
            self._code = os.waitstatus_to_exitcode(self._read())
        return self._code

    def _read(self) -> int:
        return int(_NUMBER.unpack(os.read(self._answers, _NUMBER.size))[0])


class ForkedServer(ServerProcess):
    """A command is the step at which it dies once it is armed, and how often it may reach that."""

    def __init__(self, **settings: str) -> None:
        super().__init__(command=(), **settings)
        self._armed = self.data_dir / "armed"
        self._parent = subprocess.Popen(
            [sys.executable, "-m", "tests.workspaces.forked_server"],
            env=self.environ,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def arm(self) -> None:
        self._armed.touch()

    async def _launch(self, command: list[str]) -> None:
        self._armed.unlink(missing_ok=True)
        order = {"log": str(self.log), "die_at": command, "armed": str(self._armed)}
        self.process = await asyncio.to_thread(Fork, self._parent, order)  # type: ignore[assignment]

    async def clean(self) -> None:
        await super().clean()
        await asyncio.to_thread(self._parent.communicate)


def main() -> None:
    answers = os.dup(1)
    os.set_inheritable(answers, False)
    for line in sys.stdin.buffer:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            log = os.open(order["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.close(answers)
            if order["die_at"]:
                step, count = order["die_at"]
                die_at(step, int(count), Path(order["armed"]))
            asyncio.run(serve(server_settings()))
            sys.exit()
        os.write(answers, _NUMBER.pack(pid))
        os.write(answers, _NUMBER.pack(os.waitpid(pid, 0)[1]))


if __name__ == "__main__":
    main()
