"""JSON bodies of execs and their events, built like those in ``http_bodies``.

Bytes that are valid UTF-8 are sent as text. Otherwise the text is a readable approximation, and a
base64 field next to it has the exact bytes.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field
from typing import Any, ClassVar

from sandlot.domain.computer import ExecSummary, ShellSummary
from sandlot.domain.errors import InvalidRequest
from sandlot.domain.execution import (
    DEFAULT_OUTPUT_LIMIT_BYTES,
    ExecRequest,
    ExecResult,
    Exited,
    OnLimit,
    PtySize,
    Verdict,
    verdict_of,
)
from sandlot.domain.ids import new_exec_id
from sandlot.domain.kept_output import Omitted
from sandlot.domain.network.decisions import Denied
from sandlot.domain.service import Access, ExecStatus, ThreadRun
from sandlot.wire.code.context_bodies import CellBody
from sandlot.wire.http_bodies import STRICT, CreateSessionBody, SessionBody, wire_fields


def text_and_base64(data: bytes) -> tuple[str, str | None]:
    try:
        return data.decode(), None
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace"), base64.b64encode(data).decode()


def bytes_of(text: str, exact: str | None) -> bytes:
    if exact is None:
        return text.encode("utf-8", "surrogatepass")
    try:
        return base64.b64decode(exact, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest("not valid base64") from error


def verdict_for_sdk(verdict: Verdict) -> Verdict:
    """The verdict as SDKs and coordinators of version 0.2 know it. Later ones find out by what was denied."""
    return Verdict.NONZERO if verdict is Verdict.EGRESS_DENIED else verdict


# --- execs ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PtyBody:
    """The size of a terminal, in characters.

    rows: its lines.
    cols: its columns.
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    rows: int = 24
    cols: int = 80


@dataclass(frozen=True, slots=True)
class ExecBody:
    """A command to run. Give one of ``command``, ``argv`` and ``cell``.

    command: a command line for bash.
    argv: a program and its arguments, run as they are.
    exec_id: the id of this run. Using the same id again returns the same result and never runs the command
        twice. Null: a new id.
    cwd: the folder that the command runs in; null for ``/workspace``.
    env: variables for this command; they override those of the session.
    input: the command's whole stdin, as text.
    input_base64: the same for bytes that are not text.
    stdin: keep stdin open, for a client that attaches over a WebSocket.
    timeout_s: seconds after which the command and everything it started are killed; null for the server's
        default, which is 300 unless its operator set another.
    output_limit: how many bytes of output are kept: the first half and the last half of them. At most 16 MiB.
        Null keeps all, for streams and background commands only.
    on_limit: ``truncate`` drops output above the limit, ``kill`` ends the command.
    pty: run the command on a terminal of this size.
    shell: run in the shell of this name, which keeps its folder, variables and functions.
    merge_output: send stdout and stderr through one pipe. Their order is exact, and all output counts as
        stdout.
    approved: a person has approved this command. It then passes rules of command policies that ask,
        and none that deny.
    background: answer at once with the exec id.
    cell: code for a context of the session. Its events are on stdout, one JSON object in each line.
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    command: str | None = None
    argv: list[str] | None = None
    exec_id: str | None = None
    cwd: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    input: str | None = None
    input_base64: str | None = None
    stdin: bool = False
    timeout_s: float | None = None
    output_limit: int | None = DEFAULT_OUTPUT_LIMIT_BYTES
    on_limit: OnLimit = OnLimit.TRUNCATE
    pty: PtyBody | None = None
    shell: str | None = None
    merge_output: bool = False
    approved: bool = False
    background: bool = False
    cell: CellBody | None = None

    @property
    def stdin_bytes(self) -> bytes | None:
        if self.input is None and self.input_base64 is None:
            return None
        return bytes_of(self.input or "", self.input_base64)

    def to_domain(self, *, exec_id: str | None = None) -> ExecRequest:
        return ExecRequest(
            command=self.command,
            argv=None if self.argv is None else tuple(self.argv),
            cell=None if self.cell is None else self.cell.to_domain(),
            exec_id=self.exec_id or exec_id or new_exec_id(),
            cwd=self.cwd,
            env=self.env,
            stdin=self.stdin or self.input is not None or self.input_base64 is not None,
            timeout_s=self.timeout_s,
            output_limit=self.output_limit,
            on_limit=self.on_limit,
            pty=None if self.pty is None else PtySize(self.pty.rows, self.pty.cols),
            shell=self.shell,
            merge_output=self.merge_output,
            approved=self.approved,
        )

    @classmethod
    def of(cls, request: ExecRequest, stdin: bytes | None = None, *, background: bool = False) -> ExecBody:
        text, exact = (None, None) if stdin is None else text_and_base64(stdin)
        return cls(
            command=request.command,
            argv=None if request.argv is None else list(request.argv),
            exec_id=request.exec_id,
            cwd=request.cwd,
            env=dict(request.env),
            input=None if exact else text,
            input_base64=exact,
            stdin=request.stdin,
            timeout_s=request.timeout_s,
            output_limit=request.output_limit,
            on_limit=request.on_limit,
            pty=None if request.pty is None else PtyBody(request.pty.rows, request.pty.cols),
            shell=request.shell,
            merge_output=request.merge_output,
            approved=request.approved,
            background=background,
            cell=None if request.cell is None else CellBody.of(request.cell),
        )

    def to_wire(self) -> dict[str, Any]:
        return wire_fields(self, "merge_output", "approved", "cell")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultFacts:
    """A result without its output, which has more than one form; ``ResultBody`` explains the fields."""

    exec_id: str
    session_id: str
    generation: int
    exit_code: int
    verdict: Verdict
    timed_out: bool
    truncated: bool
    retryable: bool = False
    duration_ms: float
    output_bytes: int
    peak_memory_bytes: int
    exited: Exited
    gaps: int = 0
    stdout_omitted: Omitted | None = None
    stderr_omitted: Omitted | None = None
    output_omitted: Omitted | None = None
    denied: tuple[Denied, ...] = ()

    @staticmethod
    def members(result: ExecResult) -> dict[str, Any]:
        return {
            "exec_id": result.exec_id,
            "session_id": result.session_id,
            "generation": result.generation,
            "exit_code": result.exit_code,
            "verdict": result.verdict,
            "timed_out": result.timed_out,
            "truncated": result.truncated,
            "duration_ms": result.exited.duration_ms,
            "output_bytes": result.exited.output_bytes,
            "peak_memory_bytes": result.exited.peak_memory_bytes,
            "exited": result.exited,
            "gaps": result.gaps,
            "stdout_omitted": result.stdout_omitted,
            "stderr_omitted": result.stderr_omitted,
            "output_omitted": result.output_omitted,
            "denied": result.denied,
        }

    def with_output(self, stdout: bytes, stderr: bytes, output: bytes) -> ExecResult:
        return ExecResult(
            exec_id=self.exec_id,
            exit_code=self.exit_code,
            stdout=stdout,
            stderr=stderr,
            output=output,
            verdict=verdict_of(self.exited) if self.verdict is Verdict.NONZERO else self.verdict,
            exited=self.exited,
            gaps=self.gaps,
            session_id=self.session_id,
            generation=self.generation,
            stdout_omitted=self.stdout_omitted,
            stderr_omitted=self.stderr_omitted,
            output_omitted=self.output_omitted,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultBody(ResultFacts):
    """The result of a command. Output is text; a ``…_base64`` field is set where text cannot be exact.

    stdout: what was kept of stdout.
    stderr: what was kept of stderr.
    output: both, in the order in which they were read.
    stdout_base64, stderr_base64, output_base64: the exact bytes, if they are not valid UTF-8.
    exec_id: the id of this run.
    session_id: the session that ran the command.
    generation: which of the session's sandboxes ran it.
    exit_code: the exit code; 128 + the signal's number if a signal ended the command.
    verdict: why the command ended.
    timed_out: whether it was killed because its time was up.
    truncated: whether some of the output is missing.
    duration_ms: how long it ran, in milliseconds.
    output_bytes: how many bytes it wrote, kept or not.
    peak_memory_bytes: the most memory that it used.
    exited: the event that ended it, with times and memory.
    gaps: how many gaps the output has beside the one that truncation made.
    stdout_omitted: how many bytes are missing in ``stdout``, and where.
    stderr_omitted: how many bytes are missing in ``stderr``, and where.
    output_omitted: how many bytes are missing in ``output``, and where.
    denied: the connections from the sandbox that were denied while it ran, oldest first.
    retryable: always false; clients of version 0.1 expect it.
    """

    stdout: str
    stderr: str
    output: str
    stdout_base64: str | None = None
    stderr_base64: str | None = None
    output_base64: str | None = None

    @classmethod
    def of(cls, result: ExecResult) -> ResultBody:
        stdout, stdout_exact = text_and_base64(result.stdout)
        stderr, stderr_exact = text_and_base64(result.stderr)
        output, output_exact = text_and_base64(result.output)
        return cls(
            **cls.members(result),
            stdout=stdout,
            stderr=stderr,
            output=output,
            stdout_base64=stdout_exact,
            stderr_base64=stderr_exact,
            output_base64=output_exact,
        )

    def to_domain(self) -> ExecResult:
        return self.with_output(
            bytes_of(self.stdout, self.stdout_base64),
            bytes_of(self.stderr, self.stderr_base64),
            bytes_of(self.output, self.output_base64),
        )


@dataclass(frozen=True, slots=True)
class ExecStatusBody:
    """Whether a command runs, and its result.

    exec_id: the id of this run.
    running: whether it runs.
    result: its result, once it has ended.
    """

    exec_id: str
    running: bool
    result: ResultBody | None = None

    @classmethod
    def of(cls, status: ExecStatus) -> ExecStatusBody:
        return cls(
            status.exec_id, status.running, None if status.result is None else ResultBody.of(status.result)
        )


@dataclass(frozen=True, slots=True)
class ThreadExecBody:
    """A command to run in a thread's session.

    exec: the command. It cannot run in the background.
    session: how to create the session if the thread has none.
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    exec: ExecBody
    session: CreateSessionBody = field(default_factory=CreateSessionBody)

    def to_wire(self) -> dict[str, Any]:
        return {"exec": self.exec.to_wire(), "session": self.session.to_wire()}


@dataclass(frozen=True, slots=True)
class ThreadRunBody:
    """The result of a command in a thread's session.

    session: the session.
    created: whether this request created it.
    result: the command's result.
    """

    session: SessionBody
    created: bool
    result: ResultBody

    @classmethod
    def of(cls, run: ThreadRun, access: Access | None = None) -> ThreadRunBody:
        return cls(SessionBody.of(run.opened.session, access), run.opened.created, ResultBody.of(run.result))


@dataclass(frozen=True, slots=True)
class ExecListBody:
    """The execs of a session."""

    execs: list[ExecSummary]


@dataclass(frozen=True, slots=True)
class ShellListBody:
    """The shells of a session."""

    shells: list[ShellSummary]


@dataclass(frozen=True, slots=True)
class SignalBody:
    """A signal to send.

    signal: its number, such as 2 for SIGINT.
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    signal: int


@dataclass(frozen=True, slots=True)
class SignalledBody:
    """Who got the signal.

    processes: how many processes.
    """

    processes: int
