"""One command run: what is asked, what is heard, what came of it, and why it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from sandlot.domain.budget import hold
from sandlot.domain.errors import InvalidRequest
from sandlot.domain.ids import is_exec_id, is_shell_name, new_exec_id
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
    """What came of a command. ``output`` has both channels in arrival order; see ``Output``."""

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


class ResultFold:
    """Folds events into a result; at most ``keep_bytes`` of output are held, whatever arrives, and all of it
    on the account of who is being served: ``Busy`` when there is no room, and the exec keeps its output.
    """

    def __init__(self, exec_id: str, keep_bytes: int = MAX_OUTPUT_LIMIT_BYTES, offset: int = 0) -> None:
        self._exec_id = exec_id
        self._keep = keep_bytes
        self._next = offset
        self._gaps = 0
        self._dropped = False
        # Not a list of pieces: a command that prints byte by byte would make each byte cost a hundred.
        self._output = bytearray()
        # Apart only from the moment on in which there are two: most commands print on one, and it is all.
        self._only: Channel | None = None
        self._by_channel: dict[Channel, bytearray] = {}

    def add(self, event: ExecEvent) -> ExecResult | None:
        """Returns the result when the event is the exit."""
        if isinstance(event, Output):
            if event.offset > self._next:
                self._gaps += 1
            self._next = event.offset + len(event.data)
            data = event.data[: max(0, self._keep - len(self._output))]
            self._dropped = self._dropped or len(data) < len(event.data)
            self._keep_output(event.channel, data)
            return None
        if isinstance(event, Started):
            return None
        # Each is let go of as soon as it is copied: the fold may live on while its reader waits for the end.
        output = bytes(self._output)
        self._output = bytearray()
        if self._by_channel:
            stdout, stderr = (bytes(self._by_channel.pop(channel)) for channel in Channel)
        else:
            stdout, stderr = (output if self._only is channel else b"" for channel in Channel)
        return ExecResult(
            exec_id=self._exec_id,
            exit_code=event.code,
            stdout=stdout,
            stderr=stderr,
            output=output,
            verdict=verdict_of(event),
            exited=event,
            gaps=self._gaps + (1 if self._dropped else 0),
        )

    def _keep_output(self, channel: Channel, data: bytes) -> None:
        if not data:
            return
        self._only = self._only or channel
        if not self._by_channel and channel is not self._only:
            hold(len(self._output))
            self._by_channel = {Channel.STDOUT: bytearray(), Channel.STDERR: bytearray()}
            self._by_channel[self._only] += self._output
        hold(len(data) * (2 if self._by_channel else 1))
        self._output += data
        if self._by_channel:
            self._by_channel[channel] += data
