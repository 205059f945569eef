"""Connects a command in a sandbox to this terminal or these pipes: output, input and exit code.

On pipes, stdout and stderr stay separate and end of input is forwarded. The first interrupt goes to
the command, a second one kills it, and a third one leaves it running. On a terminal everything is
one stream. The local terminal is in raw mode, so that every key reaches the command, and the remote
terminal follows its size. The local terminal is always restored.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import termios
import tty
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from sandlot.cli.terminal.display import BROKEN_PIPE, note, write_bytes
from sandlot.domain.errors import InvalidRequest, LinkInterrupted, SandlotError, Unavailable
from sandlot.domain.execution import Channel, Exited, Output, Verdict, verdict_of
from sandlot.domain.network.decisions import Denied
from sandlot.domain.text.printable import escape_unprintable

if TYPE_CHECKING:
    from sandlot.client.async_exec import AsyncExec
    from sandlot.client.async_session import AsyncSession
    from sandlot.client.options import ExecOptions

STDIN, STDOUT, STDERR = 0, 1, 2
_READ_BYTES = 64 * 1024
_INTERRUPT_TIMEOUT_S = 5.0  # how long to wait for the server to accept an interrupt
MAX_SHOWN_DENIALS = 3
_VERDICT_NOTES = {
    Verdict.TIMEOUT: (
        "Command timed out after {seconds:.1f} s and was killed. To allow more time, pass --timeout."
    ),
    Verdict.OOM: "Command was killed: the sandbox ran out of memory.",
    Verdict.DISK_FULL: "Command failed: the sandbox's disk is full.",
    Verdict.OUTPUT_LIMIT: "Command was killed: it exceeded its output limit.",
}


def parse_command(words: Sequence[str]) -> str | Sequence[str]:
    """Return one word as a shell command; several as a program and its arguments, unchanged."""
    if words and words[0] == "--":  # follows SESSION, where options have already ended
        words = words[1:]
    if not words:
        raise InvalidRequest("Missing command.")
    if not words[0]:
        raise InvalidRequest("The command is empty.")
    return words[0] if len(words) == 1 else tuple(words)


async def on_pipes(
    session: AsyncSession, command: str | Sequence[str], *, stdin: bool, options: ExecOptions
) -> int:
    """Run a command with this process's stdout and stderr; return its exit code."""
    uncapped: ExecOptions = {**options, "output_limit": None}
    execution = await session.start(command, stdin=stdin, **uncapped)
    interrupts, exit_signal = 0, 0
    undelivered = False

    def interrupt(number: int) -> None:
        nonlocal interrupts, exit_signal
        interrupts += 1
        if undelivered or interrupts > 2:
            exit_signal = number
            copying.cancel()
        else:
            background(deliver(execution.signal(number) if interrupts == 1 else execution.kill()))

    async def deliver(call: Coroutine[Any, Any, int]) -> None:
        nonlocal undelivered
        try:
            async with asyncio.timeout(_INTERRUPT_TIMEOUT_S):
                await call
        except (LinkInterrupted, Unavailable, TimeoutError):
            undelivered = True
            note(
                "The server does not respond, so the command was not interrupted. "
                "Press Ctrl-C again to leave it running."
            )

    with _background_tasks() as background, _signals((signal.SIGINT, signal.SIGTERM), interrupt):
        if stdin:
            background(_forward_input(execution))
        copying = asyncio.ensure_future(_copy_output(execution))
        try:
            return await copying
        except asyncio.CancelledError:
            if not exit_signal:
                raise
            note(f"Command {execution.id} may still be running.")
            return 128 + exit_signal


async def on_terminal(session: AsyncSession, command: str | Sequence[str], *, options: ExecOptions) -> int:
    """Run a command on this terminal; return its exit code."""
    if not (os.isatty(STDIN) and os.isatty(STDOUT)):
        raise InvalidRequest(
            "stdin and stdout must be a terminal. "
            "In a script, use `sandlot run`, or `sandlot exec` without -t."
        )
    rows, cols = _terminal_size()
    execution = await session.terminal(command, rows=rows, cols=cols, **options)

    def resize(_: int) -> None:
        background(execution.resize(*_terminal_size()))

    def hang_up(_: int) -> None:
        background(execution.kill())

    with (
        _raw_terminal(),
        _background_tasks() as background,
        _signals((signal.SIGWINCH,), resize),
        _signals((signal.SIGTERM, signal.SIGHUP), hang_up),
    ):
        background(_forward_input(execution))
        return await _copy_output(execution)


def _terminal_size() -> tuple[int, int]:
    """Return rows and columns. A terminal without a size, as under `script`, reports 0 for both."""
    size = os.get_terminal_size(STDIN)
    return size.lines or 24, size.columns or 80


# --- output -------------------------------------------------------------------------------------


async def _copy_output(execution: AsyncExec) -> int:
    wrote_stderr = False
    expected = 0
    async for event in execution.events():
        if isinstance(event, Output):
            wrote_stderr = wrote_stderr or event.channel is Channel.STDERR
            if event.offset > expected:
                note(f"{event.offset - expected} bytes of output were lost here.")
            expected = event.offset + len(event.data)
            try:
                write_bytes(STDERR if event.channel is Channel.STDERR else STDOUT, event.data)
            except BrokenPipeError:
                # As in a pipeline on one machine, the writer ends when its reader does.
                await execution.kill()
                return BROKEN_PIPE
        elif isinstance(event, Exited):
            # A command that could not start reports that on its stderr. Do not report it twice.
            return _exit_code(event, "" if wrote_stderr else event.error)
    raise SandlotError(
        f"The output of {execution.id} ended without an exit code. Run `sandlot sessions list` to see "
        "whether its session still exists."
    )


def _exit_code(exited: Exited, start_error: str) -> int:
    verdict = verdict_of(exited)
    if message := start_error or _VERDICT_NOTES.get(verdict, "").format(seconds=exited.duration_ms / 1000):
        note(message)
    for denied in exited.denied[:MAX_SHOWN_DENIALS]:
        # The program need not have shown what it was told.
        note(escape_unprintable(f"Denied: {denied.target} ({denied.rule}). {_how_to_allow(denied)}"))
    return exited.code if exited.code or verdict is Verdict.OK else 1


def _how_to_allow(denied: Denied) -> str:
    if not denied.entry:
        return denied.ask
    return f"To allow it, pass --allow {denied.entry}, or run `sandlot network allow SESSION {denied.entry}`."


# --- input --------------------------------------------------------------------------------------


async def _forward_input(execution: AsyncExec) -> None:
    try:
        async for data in _stdin_data():
            await execution.write(data)
        await execution.close_stdin()
    except LinkInterrupted as error:
        # The connection also closes when the command ends. Then its exit event is enough.
        if (await execution.status()).running:
            note(f"Could not forward stdin: {error.message}")
    except SandlotError:
        pass  # a command that has ended takes no input


async def _stdin_data() -> AsyncIterator[bytes]:
    """Yield data from stdin as it arrives.

    No thread reads it, because it could outlive the command.
    """
    loop = asyncio.get_running_loop()
    while True:
        readable = asyncio.Event()
        try:
            loop.add_reader(STDIN, readable.set)
        except OSError as error:
            if error.errno != errno.EPERM:  # EPERM: a file or /dev/null, which is always readable
                raise
        else:
            try:
                await readable.wait()
            finally:
                loop.remove_reader(STDIN)
        try:
            data = os.read(STDIN, _READ_BYTES)
        except OSError as error:
            if error.errno != errno.EIO:  # EIO: the terminal is gone
                raise
            data = b""
        if not data:
            return
        yield data


# --- state that must be restored ----------------------------------------------------------------


@contextmanager
def _raw_terminal() -> Iterator[None]:
    before = termios.tcgetattr(STDIN)
    tty.setraw(STDIN, termios.TCSADRAIN)
    try:
        yield
    finally:
        with suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(STDIN, termios.TCSADRAIN, before)


@contextmanager
def _signals(numbers: Sequence[int], handle: Callable[[int], None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    for number in numbers:
        loop.add_signal_handler(number, handle, number)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


@contextmanager
def _background_tasks() -> Iterator[Callable[[Coroutine[Any, Any, Any]], None]]:
    """Run tasks beside the output until it ends. Their failures do not affect the command."""
    running: set[asyncio.Task[Any]] = set()

    def start(work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.ensure_future(work)
        running.add(task)
        task.add_done_callback(finished)

    def finished(task: asyncio.Task[Any]) -> None:
        running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            note(str(error))

    try:
        yield start
    finally:
        for task in tuple(running):
            task.cancel()
