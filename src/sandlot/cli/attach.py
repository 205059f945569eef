"""An exec on this terminal or on these pipes: output where it belongs, our input to it, its exit code ours.

Two shapes. On pipes stdout and stderr stay apart, end of input is passed on, and an interrupt goes to the
command (a second one kills it, a third leaves it). On a terminal everything is one stream: ours is put into
raw mode, so that every key goes through, and its size follows ours; whatever happens, it is put back as it
was.
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

from sandlot.cli.display import BROKEN_PIPE, note, write_bytes
from sandlot.domain.errors import InvalidRequest, LinkInterrupted, SandlotError, Unavailable
from sandlot.domain.execution import Channel, Exited, Output, Verdict, verdict_of

if TYPE_CHECKING:
    from sandlot.client.async_exec import AsyncExec
    from sandlot.client.async_session import AsyncSession
    from sandlot.client.options import ExecOptions

STDIN, STDOUT, STDERR = 0, 1, 2
_READ_BYTES = 64 * 1024
_DELIVER_S = 5.0  # until an interrupt has arrived; who interrupts again wants to leave
_SAID = {
    Verdict.TIMEOUT: "the command was ended: its time was over",
    Verdict.OOM: "the command was ended: it needed more memory than the sandbox has",
    Verdict.DISK_FULL: "the sandbox's disk is full",
    Verdict.OUTPUT_LIMIT: "the command was ended: it printed too much",
}


def one_or_words(words: Sequence[str]) -> str | Sequence[str]:
    """One word is a command for the shell; several are a program and its arguments, taken as they are."""
    if words[0] == "--":  # stands behind SESSION, where options have ended already
        words = words[1:]
    if not words:
        raise InvalidRequest("no command is given")
    if not words[0]:
        raise InvalidRequest("the command is empty")
    return words[0] if len(words) == 1 else tuple(words)


async def on_pipes(
    session: AsyncSession, command: str | Sequence[str], *, stdin: bool, options: ExecOptions
) -> int:
    uncapped: ExecOptions = {**options, "output_limit": None}
    execution = await session.start(command, stdin=stdin, **uncapped)
    interrupts, left_by = 0, 0
    unheard = False

    def interrupt(number: int) -> None:
        nonlocal interrupts, left_by
        interrupts += 1
        if unheard or interrupts > 2:
            left_by = number
            copying.cancel()
        else:
            background(deliver(execution.signal(number) if interrupts == 1 else execution.kill()))

    async def deliver(call: Coroutine[Any, Any, int]) -> None:
        nonlocal unheard
        try:
            async with asyncio.timeout(_DELIVER_S):
                await call
        except (LinkInterrupted, Unavailable, TimeoutError):
            unheard = True
            note(
                "the server does not answer, so the command was not interrupted; interrupt again to leave it"
            )

    with _tasks() as background, _signals((signal.SIGINT, signal.SIGTERM), interrupt):
        if stdin:
            background(_forward_input(execution))
        copying = asyncio.ensure_future(_copy_output(execution))
        try:
            return await copying
        except asyncio.CancelledError:
            if not left_by:
                raise
            note(f"{execution.id} may go on running")
            return 128 + left_by


async def on_terminal(session: AsyncSession, command: str | Sequence[str], *, options: ExecOptions) -> int:
    if not (os.isatty(STDIN) and os.isatty(STDOUT)):
        raise InvalidRequest("a terminal was asked for, but input and output here are not one: leave out -t")
    rows, cols = _terminal_size()
    execution = await session.terminal(command, rows=rows, cols=cols, **options)

    def resize(_: int) -> None:
        background(execution.resize(*_terminal_size()))

    def hang_up(_: int) -> None:
        background(execution.kill())

    with (
        _raw_terminal(),
        _tasks() as background,
        _signals((signal.SIGWINCH,), resize),
        _signals((signal.SIGTERM, signal.SIGHUP), hang_up),
    ):
        background(_forward_input(execution))
        return await _copy_output(execution)


def _terminal_size() -> tuple[int, int]:
    """Rows and columns; a terminal that nobody gave a size, as under `script`, says 0 of each."""
    size = os.get_terminal_size(STDIN)
    return size.lines or 24, size.columns or 80


# --- output -------------------------------------------------------------------------------------


async def _copy_output(execution: AsyncExec) -> int:
    complained = False
    expected = 0
    async for event in execution.events():
        if isinstance(event, Output):
            complained = complained or event.channel is Channel.STDERR
            if event.offset > expected:
                note(f"{event.offset - expected} bytes of the output are lost here")
            expected = event.offset + len(event.data)
            try:
                write_bytes(STDERR if event.channel is Channel.STDERR else STDOUT, event.data)
            except BrokenPipeError:
                # As a pipeline on one machine would do it: the writer ends with its reader.
                await execution.kill()
                return BROKEN_PIPE
        elif isinstance(event, Exited):
            # What could not be started says so on its stderr, as in any shell; it is not said twice.
            return _exit_code(event, "" if complained else event.error)
    raise SandlotError(f"the output of {execution.id} ended without an exit code")


def _exit_code(exited: Exited, unheard: str) -> int:
    verdict = verdict_of(exited)
    if said := unheard or _SAID.get(verdict):
        note(said)
    return exited.code if exited.code or verdict is Verdict.OK else 1


# --- input --------------------------------------------------------------------------------------


async def _forward_input(execution: AsyncExec) -> None:
    try:
        async for data in _input():
            await execution.write(data)
        await execution.close_stdin()
    except LinkInterrupted as error:
        # A line is also cut where the command has ended, and then its exit tells the story.
        if (await execution.status()).running:
            note(f"the input could not be passed on: {error.message}")
    except SandlotError:
        pass  # a command that has ended takes none


async def _input() -> AsyncIterator[bytes]:
    """What stands on our stdin, read when it is there; no thread that would outlive the command."""
    loop = asyncio.get_running_loop()
    while True:
        readable = asyncio.Event()
        try:
            loop.add_reader(STDIN, readable.set)
        except OSError as error:
            if error.errno != errno.EPERM:  # a file, or /dev/null: always readable
                raise
        else:
            try:
                await readable.wait()
            finally:
                loop.remove_reader(STDIN)
        try:
            data = os.read(STDIN, _READ_BYTES)
        except OSError as error:
            if error.errno != errno.EIO:  # the terminal is gone
                raise
            data = b""
        if not data:
            return
        yield data


# --- what must be put back ----------------------------------------------------------------------


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
def _tasks() -> Iterator[Callable[[Coroutine[Any, Any, Any]], None]]:
    """What goes on beside the output, until that ends. Its failures change nothing about the command."""
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
