"""One command run: its request, its events, its result, and why it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from sandlot.domain.capacity.budget import hold
from sandlot.domain.code.contexts import Cell
from sandlot.domain.errors import InvalidRequest
from sandlot.domain.ids import is_exec_id, is_shell_name, new_exec_id
from sandlot.domain.kept_output import STDERR, STDOUT, Gap, HeadAndTail, KeptOutput, Omitted
from sandlot.domain.network.decisions import Denied
from sandlot.domain.text.variables import check_env

MIB = 1024 * 1024
DEFAULT_OUTPUT_LIMIT_BYTES = 1 * MIB
MAX_OUTPUT_LIMIT_BYTES = 16 * MIB
MAX_COMMAND_BYTES = 3 * MIB


class Verdict(StrEnum):
    """Why a command ended.

    ok: it exited with 0.
    nonzero: it exited with another code, or a signal from inside the sandbox ended it.
    timeout: it was killed because its time was up.
    oom: it was killed because it needed more memory than the sandbox has.
    disk_full: it failed, and the sandbox's disk was full.
    egress_denied: it failed, and a connection that it needed may have been denied; see ``denied``.
    killed: somebody killed it through the API.
    output_limit: it was killed because it wrote more than ``output_limit`` and ``on_limit`` is ``kill``.
    """

    OK = "ok"
    NONZERO = "nonzero"
    TIMEOUT = "timeout"
    OOM = "oom"
    DISK_FULL = "disk_full"
    EGRESS_DENIED = "egress_denied"
    KILLED = "killed"
    OUTPUT_LIMIT = "output_limit"


class OnLimit(StrEnum):
    """What happens when a command writes more than ``output_limit``.

    truncate: the first and the last half of the limit are kept, and the command runs on.
    kill: the command is killed.
    """

    TRUNCATE = "truncate"
    KILL = "kill"


class Channel(StrEnum):
    """Which of a command's two outputs.

    stdout: standard output.
    stderr: standard error.
    """

    STDOUT = "stdout"
    STDERR = "stderr"


@dataclass(frozen=True, slots=True)
class PtySize:
    """The size of a terminal, in characters.

    rows: its lines.
    cols: its columns.
    """

    rows: int = 24
    cols: int = 80


@dataclass(frozen=True, slots=True)
class ExecRequest:
    """One command to run. Give one of ``command``, ``argv`` and ``cell``.

    command: a command line for bash.
    argv: a program and its arguments, run as they are.
    cell: code for a context of the session.
    stdin: whether the command gets an input.
    pty: run the command on a terminal of this size.
    exec_id, cwd, env, timeout_s, output_limit, on_limit, shell, merge_output, approved: see ``ExecOptions``.
    """

    command: str | None = None
    argv: tuple[str, ...] | None = None
    cell: Cell | None = None
    exec_id: str = field(default_factory=new_exec_id)
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: bool = False
    timeout_s: float | None = None
    output_limit: int | None = DEFAULT_OUTPUT_LIMIT_BYTES
    on_limit: OnLimit = OnLimit.TRUNCATE
    pty: PtySize | None = None
    shell: str | None = None
    merge_output: bool = False
    approved: bool = False

    @property
    def text(self) -> str:
        """The command line, or the code of a cell; empty for ``argv``."""
        return self.cell.code if self.cell is not None else self.command or ""

    def __post_init__(self) -> None:
        if sum(given is not None for given in (self.command, self.argv, self.cell)) != 1:
            raise InvalidRequest("Pass exactly one of command, argv and cell.")
        if self.cell is not None and (self.pty, self.shell, self.cwd, self.stdin) != (
            None,
            None,
            None,
            False,
        ):
            raise InvalidRequest("A cell has no terminal (pty), shell, cwd or stdin. Its context has a cwd.")
        if self.argv is not None and not self.argv:
            raise InvalidRequest("The command is empty.")
        if not is_exec_id(self.exec_id):
            raise InvalidRequest("exec_id must be 1-64 letters, digits, dots, dashes or underscores.")
        if self.shell is not None:
            if not is_shell_name(self.shell):
                raise InvalidRequest(
                    "A shell's name must be 1-64 letters, digits, dots, dashes or underscores."
                )
            if self.command is None or self.pty is not None:
                raise InvalidRequest(
                    "A shell takes the command as a string, not as a list (argv), and has no terminal (pty)."
                )
        if self.timeout_s is not None and not 0 < self.timeout_s <= 7 * 24 * 3600:
            raise InvalidRequest("timeout_s must be more than 0 and at most a week.")
        if self.output_limit is not None and not 0 < self.output_limit <= MAX_OUTPUT_LIMIT_BYTES:
            raise InvalidRequest(f"output_limit must be 1 to {MAX_OUTPUT_LIMIT_BYTES} bytes, or None.")
        check_env(self.env)
        texts = [self.command or "", *(self.argv or ()), self.cwd or "", *self.env, *self.env.values()]
        if any("\0" in text for text in texts):
            raise InvalidRequest("A command, argument or folder contains a NUL character.")
        try:
            size = sum(len(text.encode("utf-8", "surrogateescape")) for text in texts)
        except UnicodeEncodeError:
            raise InvalidRequest(
                "A command, argument, folder or variable is not valid Unicode text."
            ) from None
        if size > MAX_COMMAND_BYTES:
            raise InvalidRequest(
                f"The command and its environment exceed {MAX_COMMAND_BYTES} bytes. Put long content into "
                "a file."
            )


@dataclass(frozen=True, slots=True)
class Started:
    """The event that a command has started.

    pid: the process id inside the sandbox.
    existing: the exec id was known already; this is that command, and nothing was started again.
    """

    pid: int
    existing: bool


@dataclass(frozen=True, slots=True)
class Output:
    """The event that a command has written something.

    stdout and stderr are two pipes: what was written to both at nearly the same time may change places. With
    ``merge_output`` the order is exact.

    channel: stdout or stderr.
    offset: the position of the first byte, counted over both channels. A jump means that bytes are missing.
    data: the bytes.
    """

    channel: Channel
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Exited:
    """The event that a command has ended.

    code: the exit code; 128 + the signal's number if a signal ended it.
    signal: the signal that ended it, or 0.
    reason: ``exited``, ``start_failed``, ``timeout``, ``oom``, ``killed`` or ``output_limit``.
    error: why the command could not be started, if so.
    truncated: whether some output was not kept.
    output_bytes: how many bytes the command wrote.
    stderr_bytes: how many of them on stderr; 0 from an older agent.
    gap_from: the offset from which truncated output was not kept.
    gap_to: the offset at which the kept output continues.
    duration_ms: how long it ran, in milliseconds.
    user_ms: processor time in user mode, in milliseconds.
    system_ms: processor time in the kernel, in milliseconds.
    peak_memory_bytes: the most memory that it used.
    oom: whether the sandbox ran out of memory meanwhile.
    disk_full: whether the command met a full disk.
    shell_ended: whether the shell that ran it has ended.
    shell_restarted: whether its shell had died between two commands, so that a new one ran it.
    denied: the connections from the sandbox that were denied while the command ran, oldest first.
    """

    code: int
    signal: int
    reason: str
    error: str = ""
    truncated: bool = False
    output_bytes: int = 0
    stderr_bytes: int = 0
    gap_from: int = 0
    gap_to: int = 0
    duration_ms: float = 0.0
    user_ms: float = 0.0
    system_ms: float = 0.0
    peak_memory_bytes: int = 0
    oom: bool = False
    disk_full: bool = False
    shell_ended: bool = False
    shell_restarted: bool = False
    # The worker adds it: an agent knows nothing of it.
    denied: tuple[Denied, ...] = ()


ExecEvent = Started | Output | Exited


# 128 + SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGSEGV. No denied connection ends a program in this way.
_CRASHED: Final = frozenset({132, 134, 135, 136, 139})


def verdict_of(exited: Exited) -> Verdict:
    """Why an exec ended, from the strongest reason to the weakest."""
    by_reason = {
        "timeout": Verdict.TIMEOUT,
        "output_limit": Verdict.OUTPUT_LIMIT,
        "oom": Verdict.OOM,
        "killed": Verdict.KILLED,
    }
    if exited.reason in by_reason:
        return by_reason[exited.reason]
    if exited.oom and exited.code != 0:
        return Verdict.OOM
    if exited.disk_full and exited.code != 0:
        return Verdict.DISK_FULL
    if exited.denied and exited.code != 0 and exited.code not in _CRASHED:
        return Verdict.EGRESS_DENIED
    return Verdict.OK if exited.code == 0 else Verdict.NONZERO


@dataclass(frozen=True, slots=True)
class ExecResult:
    """The result of a command, in bytes.

    Of more output than ``output_limit`` the first half of the limit and the last half are kept.

    exec_id: the id of this run.
    exit_code: the exit code; 128 + the signal's number if a signal ended the command.
    stdout: what was kept of stdout.
    stderr: what was kept of stderr.
    output: both, in the order in which they were read.
    verdict: why the command ended.
    exited: the event that ended it, with times and memory.
    gaps: how many gaps the output has beside the one that truncation made.
    session_id: the session that ran the command.
    generation: which of the session's sandboxes ran it.
    stdout_omitted: how many bytes are missing in ``stdout``, and where.
    stderr_omitted: how many bytes are missing in ``stderr``, and where.
    output_omitted: how many bytes are missing in ``output``, and where.
    """

    exec_id: str
    exit_code: int
    stdout: bytes
    stderr: bytes
    output: bytes
    verdict: Verdict
    exited: Exited
    gaps: int = 0
    # A provider knows neither of these two.
    session_id: str = ""
    generation: int = 0
    stdout_omitted: Omitted | None = None
    stderr_omitted: Omitted | None = None
    output_omitted: Omitted | None = None

    @property
    def denied(self) -> tuple[Denied, ...]:
        """The connections from the sandbox that were denied while the command ran, oldest first."""
        return self.exited.denied

    @property
    def timed_out(self) -> bool:
        """Whether the command was killed because its time was up."""
        return self.verdict is Verdict.TIMEOUT

    @property
    def truncated(self) -> bool:
        """Whether some of the output is missing."""
        return self.exited.truncated or self.gaps > 0


_MARKS: Final = {Channel.STDOUT: STDOUT, Channel.STDERR: STDERR}


class ResultFold:
    """Folds an exec's events into its result.

    It holds at most ``keep_bytes`` of output: the beginning and the end, half each. The bytes count
    against the current request's account. If that has no room, ``add`` raises ``Busy``; the output
    is not lost, because the exec keeps it.
    """

    def __init__(self, exec_id: str, keep_bytes: int = MAX_OUTPUT_LIMIT_BYTES, offset: int = 0) -> None:
        self._exec_id = exec_id
        self._offset = offset
        self._kept = KeptOutput(keep_bytes, offset)
        self._held = 0

    def add(self, event: ExecEvent) -> ExecResult | None:
        """Add an event. Returns the result if the event is the exit."""
        if isinstance(event, Output):
            self._kept.add(event.offset, event.data, _MARKS[event.channel])
            if (size := self._kept.size) > self._held:
                hold(size - self._held)
                self._held = size
            return None
        return None if isinstance(event, Started) else self._result(event)

    def _result(self, exited: Exited) -> ExecResult:
        mark, jumps = self._kept.mark, self._kept.jumps
        both = self._kept.take(Gap(exited.gap_from, exited.gap_to))
        if mark is None:
            stdout, stderr = both.of(STDOUT), both.of(STDERR)
        else:
            stdout, stderr = (both if mark == each else _EMPTY for each in (STDOUT, STDERR))
        output = both.whole
        # If there is only one channel, it is the whole output: share it instead of copying it.
        out, err = (output if each is both else each.whole for each in (stdout, stderr))
        written = max(exited.output_bytes, self._kept.end_offset)
        missing = max(0, written - self._offset - len(output))
        missing_out, missing_err = self._missing_by_channel(missing, len(err), exited, mark)
        # An agent that reports no gap has kept the beginning: the bytes that it did not send follow
        # it.
        not_kept = exited.gap_to - exited.gap_from or written - self._kept.end_offset
        gap_reported = exited.truncated and missing == not_kept
        return ExecResult(
            exec_id=self._exec_id,
            exit_code=exited.code,
            stdout=out,
            stderr=err,
            output=output,
            verdict=verdict_of(exited),
            exited=exited,
            # Not counting the gap that the exit itself reports.
            gaps=max(1, jumps) if missing and not gap_reported else 0,
            stdout_omitted=stdout.omitted(missing_out),
            stderr_omitted=stderr.omitted(missing_err),
            output_omitted=both.omitted(missing),
        )

    def _missing_by_channel(
        self, missing: int, stderr_kept: int, exited: Exited, mark: int | None
    ) -> tuple[int, int]:
        """How many missing bytes are stdout's and stderr's; 0 and 0 if that cannot be known."""
        if self._offset > 0 or (mark is not None and not exited.stderr_bytes):
            # The agent does not report how many bytes before the offset were on stderr, and an
            # older agent reports nothing about stderr. If there is only one channel, all missing
            # bytes are that one's.
            return (missing if mark == STDOUT else 0), (missing if mark == STDERR else 0)
        missing_err = min(missing, max(0, exited.stderr_bytes - stderr_kept))
        return missing - missing_err, missing_err


_EMPTY: Final = HeadAndTail(b"", b"", b"", b"", joined=True)
