"""The process that LangChain's shell middleware talks to as if it were a bash, with the shell in a sandbox.

The first line of its input is its ``Task``. Then the middleware writes a command and behind it a line that
prints a marker and the exit code. What stands before that line is run in the sandbox's shell as one exec,
with a timeout of its own, and the marker is written here: the sandbox never sees it and cannot imitate it.
The middleware writes nothing while a command runs, except when it gives up on it: then the command is ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import msgspec

from sandlot.client.async_client import AsyncClient
from sandlot.client.async_session import AsyncSession
from sandlot.client.result import marker
from sandlot.domain.errors import NotFound, SandlotError
from sandlot.domain.execution import MAX_COMMAND_BYTES, Channel, Exited, Output, Verdict, verdict_of
from sandlot.domain.ids import new_exec_id
from sandlot.domain.kept_output import Omitted
from sandlot.integrations.foreground import kill_unwanted
from sandlot.integrations.model_text import for_model_error, new_sandbox_for_model
from sandlot.integrations.sandboxes import Sandboxes
from sandlot.integrations.toolbox.commands import KEPT_BYTES, SHELL

READ_BYTES: Final = 64 * 1024
# A lone ``exit`` is the middleware's goodbye, unless the line with the marker follows at once.
GOODBYE_S: Final = 0.2

# Nothing that a model would write by itself as the last line of a command.
_MARKER_LINE: Final = re.compile(rb"(?:\A|(?<=\n))printf '(__[A-Z_]{1,50}__[0-9a-f]{32}) %s\\n' \$\?\n\Z")
MARKER_LINE_BYTES: Final = 128  # more than it can have
TOO_LONG: Final = (
    f"[the command is longer than {MAX_COMMAND_BYTES} bytes and was not run; "
    "put long content into files, piece by piece]\n"
)


@dataclass(frozen=True, slots=True)
class Task:
    url: str
    thread: str
    timeout_s: float
    api_key: str | None = field(default=None, repr=False)
    environment: str | None = None
    name: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    new_shell: bool = False

    def to_line(self) -> str:
        return msgspec.json.encode(asdict(self)).decode() + "\n"


async def main() -> None:
    stdin = await _stdin()
    line, rest = await _first_line(stdin)
    if line is None:
        return
    task = msgspec.json.decode(line, type=Task)
    async with AsyncClient(task.url, api_key=task.api_key) as client:
        sandboxes = Sandboxes(client, environment=task.environment, name=task.name)
        await _Shell(task, sandboxes, stdin, rest).serve()


class _Shell:
    def __init__(self, task: Task, sandboxes: Sandboxes, stdin: asyncio.StreamReader, rest: bytes) -> None:
        self._task = task
        self._sandboxes = sandboxes
        self._stdin = stdin
        self._pending = bytearray(rest)
        self._new_shell = task.new_shell

    async def serve(self) -> None:
        while (asked := await self._next()) is not None:
            command, marker = asked
            running = asyncio.ensure_future(self._run(command))
            given_up = asyncio.ensure_future(self._stdin.read(READ_BYTES))
            await asyncio.wait({running, given_up}, return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                running.cancel()
                await asyncio.wait({running})
                return
            _write(Channel.STDOUT, b"%s %d\n" % (marker, running.result()))
            if given_up.done():
                self._pending += given_up.result()
            else:
                given_up.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    self._pending += await given_up

    async def _next(self) -> tuple[str, bytes] | None:
        """The next command and its marker; None at the end. One that is too long is refused here."""
        too_long = False
        while True:
            # The end alone: to look through all of it at each piece would take minutes for a long one.
            end = max(0, len(self._pending) - MARKER_LINE_BYTES)
            if (found := _MARKER_LINE.search(self._pending, end)) is not None:
                command, marker = bytes(self._pending[: found.start()]), bytes(found[1])
                self._pending.clear()
                if not too_long:
                    return command.decode("utf-8", "replace"), marker
                _write(Channel.STDERR, TOO_LONG.encode())
                _write(Channel.STDOUT, b"%s 1\n" % marker)
                too_long = False
            if len(self._pending) > MAX_COMMAND_BYTES + MARKER_LINE_BYTES:
                too_long = True
                del self._pending[:-MARKER_LINE_BYTES]
            wait_s = GOODBYE_S if self._pending == b"exit\n" else None
            try:
                async with asyncio.timeout(wait_s):
                    data = await self._stdin.read(READ_BYTES)
            except TimeoutError:
                return None
            if not data:
                return None
            self._pending += data

    async def _run(self, command: str) -> int:
        try:
            return await self._sandboxes.arun(
                self._task.thread, lambda session: self._run_in(session, command)
            )
        except SandlotError as error:
            _write(Channel.STDERR, for_model_error(error).encode() + b"\n")
            return 1

    async def _run_in(self, session: AsyncSession, command: str) -> int:
        if (note := await new_sandbox_for_model(session)) is not None:
            _write(Channel.STDERR, f"{note}\n".encode())
        if self._new_shell:
            with contextlib.suppress(NotFound):
                await session.close_shell(SHELL)
            self._new_shell = False
        exec_id = new_exec_id()
        try:
            return await self._copied(session, command, exec_id)
        except (asyncio.CancelledError, BrokenPipeError):
            await kill_unwanted(session, exec_id)
            raise

    async def _copied(self, session: AsyncSession, command: str, exec_id: str) -> int:
        events = session.stream(
            command,
            shell=SHELL,
            env=self._task.env,
            timeout_s=self._task.timeout_s,
            output_limit=KEPT_BYTES,
            exec_id=exec_id,
        )
        last, next_offset = b"\n", 0
        async with contextlib.aclosing(events):
            async for event in events:
                if isinstance(event, Output):
                    if event.offset > next_offset:
                        missing = Omitted(next_offset, event.offset - next_offset)
                        _write(Channel.STDOUT, marker(missing).encode())
                    next_offset = event.offset + len(event.data)
                    _write(event.channel, event.data)
                    if event.channel is Channel.STDOUT:
                        last = event.data[-1:] or last
                elif isinstance(event, Exited):
                    if last != b"\n":
                        _write(Channel.STDOUT, b"\n")  # the marker is to begin a line
                    if (verdict := verdict_of(event)) not in {Verdict.OK, Verdict.NONZERO}:
                        _write(Channel.STDERR, f"[ended: {verdict.value}]\n".encode())
                    return event.code
        raise SandlotError("the command's events ended without its exit", may_have_executed=True)


def _write(channel: Channel, data: bytes) -> None:
    """Blocks while the reader is slow, as it should: the command then waits for it too."""
    stream: Any = sys.stderr.buffer if channel is Channel.STDERR else sys.stdout.buffer
    stream.write(data)
    stream.flush()


async def _stdin() -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(0, "rb", buffering=0)
    )
    return reader


async def _first_line(stdin: asyncio.StreamReader) -> tuple[bytes | None, bytes]:
    read = bytearray()
    while b"\n" not in read:
        if not (data := await stdin.read(READ_BYTES)):
            return None, b""
        read += data
    line, _, rest = bytes(read).partition(b"\n")
    return line, rest


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        asyncio.run(main())
