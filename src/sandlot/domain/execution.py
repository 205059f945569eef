"""One command run: what is asked, what is heard, what came of it, and why it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from sandlot.domain.budget import hold
from sandlot.domain.errors import InvalidRequest
from sandlot.domain.ids import is_exec_id, is_shell_name, new_exec_id
from sandlot.domain.kept_output import STDERR, STDOUT, Ends, Gap, KeptOutput, Omitted
from sandlot.domain.variables import check_env

MIB = 1024 * 1024
DEFAULT_OUTPUT_LIMIT_BYTES = 1 * MIB
MAX_OUTPUT_LIMIT_BYTES = 16 * MIB
MAX_COMMAND_BYTES = 3 * MIB


class Verdict(StrEnum):
    OK = "ok"
    NONZERO = "nonzero"
    TIMEOUT = "timeout"
    OOM = "oom"
    DISK_FULL = "disk_full"
    KILLED = "killed"
    OUTPUT_LIMIT = "output_limit"
    EGRESS_DENIED = "egress_denied"
    SANDBOX_LOST = "sandbox_lost"
    INFRASTRUCTURE = "infrastructure"


class OnLimit(StrEnum):
    TRUNCATE = "truncate"
    KILL = "kill"


class Channel(StrEnum):
    STDOUT = "stdout"
    STDERR = "stderr"


@dataclass(frozen=True, slots=True)
class PtySize:
    rows: int = 24
    cols: int = 80


@dataclass(frozen=True, slots=True)
class ExecRequest:
    """Exactly one of ``command`` (for the shell) and ``argv``. ``output_limit=None``: no cap, streamed.

    ``merge_output``: stdout and stderr are one pipe, as with ``2>&1``. Their order is exact, and all of it is
    stdout.
    """

    command: str | None = None
    argv: tuple[str, ...] | None = None
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

    def __post_init__(self) -> None:
        if (self.command is None) == (self.argv is None):
            raise InvalidRequest("give exactly one of command and argv")
        if self.argv is not None and not self.argv:
            raise InvalidRequest("argv is empty")
        if not is_exec_id(self.exec_id):
            raise InvalidRequest("exec_id must be 1-64 characters of A-Z a-z 0-9 _ . -")
        if self.shell is not None:
            if not is_shell_name(self.shell):
                raise InvalidRequest("a shell's name must be 1-64 characters of A-Z a-z 0-9 _ . -")
            if self.command is None or self.pty is not None:
                raise InvalidRequest("a shell runs a command string, without a terminal of its own")
        if self.timeout_s is not None and not 0 < self.timeout_s <= 7 * 24 * 3600:
            raise InvalidRequest("timeout_s must be more than 0 and at most a week")
        if self.output_limit is not None and not 0 < self.output_limit <= MAX_OUTPUT_LIMIT_BYTES:
            raise InvalidRequest(f"output_limit must be 1 … {MAX_OUTPUT_LIMIT_BYTES} bytes, or None")
        check_env(self.env)
        texts = [self.command or "", *(self.argv or ()), self.cwd or "", *self.env, *self.env.values()]
        if any("\0" in text for text in texts):
            raise InvalidRequest("a command, argument or folder contains a NUL character")
        try:
            size = sum(len(text.encode("utf-8", "surrogateescape")) for text in texts)
        except UnicodeEncodeError:
            raise InvalidRequest("a command, argument, folder or variable is not text") from None
        if size > MAX_COMMAND_BYTES:
            raise InvalidRequest(f"the command and its environment exceed {MAX_COMMAND_BYTES} bytes")


@dataclass(frozen=True, slots=True)
class Started:
    pid: int
    existing: bool


@dataclass(frozen=True, slots=True)
class Output:
    """``offset`` counts the bytes of both channels in arrival order; a jump is a gap.

    Arrival order is that in which two pipes were read: what was written to both at nearly the same time may
    have changed places. Only ``merge_output`` makes it the order of writing.
    """

    channel: Channel
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Exited:
    code: int
    signal: int
    reason: str
    error: str = ""
    truncated: bool = False
    output_bytes: int = 0
    # Of these, on stderr; 0 from an agent that does not say.
    stderr_bytes: int = 0
    # Of a truncated output: its bytes from here to there were not kept.
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


ExecEvent = Started | Output | Exited


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
    return Verdict.OK if exited.code == 0 else Verdict.NONZERO


@dataclass(frozen=True, slots=True)
class ExecResult:
    """What came of a command. ``output`` has both channels in arrival order; see ``Output``.

    Of more output than its limit the first half of the limit and the last half are kept. ``stdout_omitted``
    and its companions say how many bytes are missing in each, and where.
    """

    exec_id: str
    exit_code: int
    stdout: bytes
    stderr: bytes
    output: bytes
    verdict: Verdict
    exited: Exited
    gaps: int = 0
    # Which session ran it, and in which of its sandboxes; a provider knows neither.
    session_id: str = ""
    generation: int = 0
    stdout_omitted: Omitted | None = None
    stderr_omitted: Omitted | None = None
    output_omitted: Omitted | None = None

    @property
    def retryable(self) -> bool:
        """Whether the same command may go better in the same sandbox, through no change of its own."""
        return self.verdict is Verdict.INFRASTRUCTURE

    @property
    def timed_out(self) -> bool:
        return self.verdict is Verdict.TIMEOUT

    @property
    def truncated(self) -> bool:
        return self.exited.truncated or self.gaps > 0


_MARKS: Final = {Channel.STDOUT: STDOUT, Channel.STDERR: STDERR}


class ResultFold:
    """Folds events into a result; at most ``keep_bytes`` of output are held, whatever arrives: its first half
    and its last. All of it is on the account of who is being served: ``Busy`` when there is no room, and the
    exec keeps its output.
    """

    def __init__(self, exec_id: str, keep_bytes: int = MAX_OUTPUT_LIMIT_BYTES, offset: int = 0) -> None:
        self._exec_id = exec_id
        self._offset = offset
        self._kept = KeptOutput(keep_bytes, offset)
        self._held = 0

    def add(self, event: ExecEvent) -> ExecResult | None:
        """Returns the result when the event is the exit."""
        if isinstance(event, Output):
            self._kept.add(event.offset, event.data, _MARKS[event.channel])
            if (size := self._kept.size) > self._held:
                hold(size - self._held)
                self._held = size
            return None
        return None if isinstance(event, Started) else self._result(event)

    def _result(self, exited: Exited) -> ExecResult:
        mark, jumps = self._kept.mark, self._kept.jumps
        both = self._kept.ends(Gap(exited.gap_from, exited.gap_to))
        if mark is None:
            stdout, stderr = both.of(STDOUT), both.of(STDERR)
        else:
            stdout, stderr = (both if mark == each else _NOTHING for each in (STDOUT, STDERR))
        output = both.whole
        # One channel is all of it, and not copied.
        out, err = (output if each is both else each.whole for each in (stdout, stderr))
        written = max(exited.output_bytes, self._kept.reached)
        missing = max(0, written - self._offset - len(output))
        missing_out, missing_err = self._shares(missing, len(err), exited, mark)
        # An agent that names no gap has kept the beginning, and what it did not send is after it.
        not_kept = exited.gap_to - exited.gap_from or written - self._kept.reached
        told = exited.truncated and missing == not_kept
        return ExecResult(
            exec_id=self._exec_id,
            exit_code=exited.code,
            stdout=out,
            stderr=err,
            output=output,
            verdict=verdict_of(exited),
            exited=exited,
            # Beside the one that the exit tells of.
            gaps=max(1, jumps) if missing and not told else 0,
            stdout_omitted=stdout.omitted(missing_out),
            stderr_omitted=stderr.omitted(missing_err),
            output_omitted=both.omitted(missing),
        )

    def _shares(self, missing: int, err: int, exited: Exited, mark: int | None) -> tuple[int, int]:
        """Of the missing bytes, those of stdout and of stderr; none of either where that cannot be known."""
        if self._offset > 0 or (mark is not None and not exited.stderr_bytes):
            # What was on stderr before the offset, nobody says; nor does an older agent, of any of it. If
            # there is one channel, it is that one's.
            return (missing if mark == STDOUT else 0), (missing if mark == STDERR else 0)
        missing_err = min(missing, max(0, exited.stderr_bytes - err))
        return missing - missing_err, missing_err


_NOTHING: Final = Ends(b"", b"", b"", b"", joined=True)
