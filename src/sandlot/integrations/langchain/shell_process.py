"""The local process that acts as bash for LangChain's shell middleware.

The real shell is in a sandbox. The first line of this process's input is its ``ShellParameters``.
Then the middleware writes a command, followed by a line that prints a marker and the exit code.
This process runs the text before that line as one exec in the sandbox's shell, with its own
timeout, and writes the marker itself: the sandbox never sees the marker and cannot forge it. While
a command runs, the middleware writes only when it abandons the command. The process then kills it.
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
from sandlot.integrations.foreground import kill_abandoned
from sandlot.integrations.model_text import format_error, new_sandbox_note
from sandlot.integrations.sandboxes import Sandboxes
from sandlot.integrations.toolbox.commands import MAX_OUTPUT_BYTES, SHELL

READ_BYTES: Final = 64 * 1024
# The middleware ends with a lone ``exit``. It is a command if the marker line follows this soon.
EXIT_GRACE_S: Final = 0.2

# A model would not write such a last line by itself.
_MARKER_LINE: Final = re.compile(rb"(?:\A|(?<=\n))printf '(__[A-Z_]{1,50}__[0-9a-f]{32}) %s\\n' \$\?\n\Z")
MARKER_LINE_BYTES: Final = 128  # more than such a line can have
TOO_LONG: Final = (
    f"[the command exceeds {MAX_COMMAND_BYTES} bytes and was not run; write long content to files, "
    "piece by piece]\n"
)
_ENDED_BY_ITSELF: Final = frozenset({Verdict.OK, Verdict.NONZERO, Verdict.EGRESS_DENIED})


@dataclass(frozen=True, slots=True)
class ShellParameters:
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
    line, leftover = await _first_line(stdin)
    if line is None:
        return
    parameters = msgspec.json.decode(line, type=ShellParameters)
    async with AsyncClient(parameters.url, api_key=parameters.api_key) as client:
        sandboxes = Sandboxes(client, environment=parameters.environment, name=parameters.name)
        await _Shell(parameters, sandboxes, stdin, leftover).serve()


class _Shell:
    def __init__(
        self, parameters: ShellParameters, sandboxes: Sandboxes, stdin: asyncio.StreamReader, leftover: bytes
    ) -> None:
        self._parameters = parameters
        self._sandboxes = sandboxes
        self._stdin = stdin
        self._pending = bytearray(leftover)
        self._new_shell = parameters.new_shell

    async def serve(self) -> None:
        while (request := await self._next_command()) is not None:
            command, marker = request
            running = asyncio.ensure_future(self._run(command))
            stdin_read = asyncio.ensure_future(self._stdin.read(READ_BYTES))
            await asyncio.wait({running, stdin_read}, return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                running.cancel()
                await asyncio.wait({running})
                return
            _write(Channel.STDOUT, b"%s %d\n" % (marker, running.result()))
            if stdin_read.done():
                self._pending += stdin_read.result()
            else:
                stdin_read.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    self._pending += await stdin_read

    async def _next_command(self) -> tuple[str, bytes] | None:
        """The next command and its marker; None at the end. Refuses commands that are too long."""
        too_long = False
        while True:
            # Search only the end. To search everything after each read would take minutes for a
            # long command.
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
            wait_s = EXIT_GRACE_S if self._pending == b"exit\n" else None
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
                self._parameters.thread, lambda session: self._run_in(session, command)
            )
        except SandlotError as error:
            _write(Channel.STDERR, format_error(error).encode() + b"\n")
            return 1

    async def _run_in(self, session: AsyncSession, command: str) -> int:
        if (note := await new_sandbox_note(session)) is not None:
            _write(Channel.STDERR, f"{note}\n".encode())
        if self._new_shell:
            with contextlib.suppress(NotFound):
                await session.close_shell(SHELL)
            self._new_shell = False
        exec_id = new_exec_id()
        try:
            return await self._forward_output(session, command, exec_id)
        except (asyncio.CancelledError, BrokenPipeError):
            await kill_abandoned(session, exec_id)
            raise

    async def _forward_output(self, session: AsyncSession, command: str, exec_id: str) -> int:
        events = session.stream(
            command,
            shell=SHELL,
            env=self._parameters.env,
            timeout_s=self._parameters.timeout_s,
            output_limit=MAX_OUTPUT_BYTES,
            exec_id=exec_id,
        )
        last_byte, next_offset = b"\n", 0
        async with contextlib.aclosing(events):
            async for event in events:
                if isinstance(event, Output):
                    if event.offset > next_offset:
                        missing = Omitted(next_offset, event.offset - next_offset)
                        _write(Channel.STDOUT, marker(missing).encode())
                    next_offset = event.offset + len(event.data)
                    _write(event.channel, event.data)
                    if event.channel is Channel.STDOUT:
                        last_byte = event.data[-1:] or last_byte
                elif isinstance(event, Exited):
                    if last_byte != b"\n":
                        _write(Channel.STDOUT, b"\n")  # the marker must start a line
                    if (verdict := verdict_of(event)) not in _ENDED_BY_ITSELF:
                        _write(Channel.STDERR, f"[ended: {verdict.value}]\n".encode())
                    return event.code
        raise SandlotError("The command's events ended without an exit event.", may_have_executed=True)


def _write(channel: Channel, data: bytes) -> None:
    """Write to a local stream. A slow reader blocks this, and so slows the command, on purpose."""
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
    line, _, leftover = bytes(read).partition(b"\n")
    return line, leftover


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        asyncio.run(main())
