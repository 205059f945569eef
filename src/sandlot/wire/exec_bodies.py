"""The JSON bodies of execs and of their events, as those of ``http_bodies``.

Bytes are text where they are valid UTF-8; where they are not, the text is readable and the exact bytes stand
beside it as base64.
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
    Channel,
    ExecEvent,
    ExecRequest,
    ExecResult,
    Exited,
    OnLimit,
    Output,
    PtySize,
    Started,
    Verdict,
    verdict_of,
)
from sandlot.domain.ids import new_exec_id
from sandlot.domain.kept_output import Omitted
from sandlot.domain.service import Access, ExecStatus, ThreadRun
from sandlot.wire.http_bodies import STRICT, CreateSessionBody, SessionBody, sent


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
        raise InvalidRequest("this is not base64") from error


# --- execs ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PtyBody:
    __pydantic_config__: ClassVar[Any] = STRICT

    rows: int = 24
    cols: int = 80


@dataclass(frozen=True, slots=True)
class ExecBody:
    """``input`` is the command's whole stdin; ``stdin`` keeps it open for an attached client instead.

    ``background``: answer at once with the exec's id. ``output_limit`` null: no cap, for streams alone.
    ``merge_output``: one pipe for stdout and stderr, so that their order is exact; all of it is stdout.
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
    background: bool = False

    @property
    def stdin_bytes(self) -> bytes | None:
        if self.input is None and self.input_base64 is None:
            return None
        return bytes_of(self.input or "", self.input_base64)

    def to_domain(self, *, exec_id: str | None = None) -> ExecRequest:
        return ExecRequest(
            command=self.command,
            argv=None if self.argv is None else tuple(self.argv),
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
            background=background,
        )

    def sent(self) -> dict[str, Any]:
        return sent(self, "merge_output")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultFacts:
    """A result without its output, which has more than one form."""

    exec_id: str
    session_id: str
    generation: int
    exit_code: int
    verdict: Verdict
    timed_out: bool
    truncated: bool
    retryable: bool
    duration_ms: float
    output_bytes: int
    peak_memory_bytes: int
    exited: Exited
    gaps: int = 0
    stdout_omitted: Omitted | None = None
    stderr_omitted: Omitted | None = None
    output_omitted: Omitted | None = None

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
            "retryable": result.retryable,
            "duration_ms": result.exited.duration_ms,
            "output_bytes": result.exited.output_bytes,
            "peak_memory_bytes": result.exited.peak_memory_bytes,
            "exited": result.exited,
            "gaps": result.gaps,
            "stdout_omitted": result.stdout_omitted,
            "stderr_omitted": result.stderr_omitted,
            "output_omitted": result.output_omitted,
        }

    def with_output(self, stdout: bytes, stderr: bytes, output: bytes) -> ExecResult:
        return ExecResult(
            exec_id=self.exec_id,
            exit_code=self.exit_code,
            stdout=stdout,
            stderr=stderr,
            output=output,
            verdict=self.verdict,
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
    """Output as text; a ``…_base64`` is there only where text could not be exact."""

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
    """Get or create the thread's session as ``session`` says, and run ``exec`` in it."""

    __pydantic_config__: ClassVar[Any] = STRICT

    exec: ExecBody
    session: CreateSessionBody = field(default_factory=CreateSessionBody)

    def sent(self) -> dict[str, Any]:
        return {"exec": self.exec.sent(), "session": self.session.sent()}


@dataclass(frozen=True, slots=True)
class ThreadRunBody:
    session: SessionBody
    created: bool
    result: ResultBody

    @classmethod
    def of(cls, run: ThreadRun, access: Access | None = None) -> ThreadRunBody:
        return cls(SessionBody.of(run.opened.session, access), run.opened.created, ResultBody.of(run.result))


@dataclass(frozen=True, slots=True)
class ExecListBody:
    execs: list[ExecSummary]


@dataclass(frozen=True, slots=True)
class ShellListBody:
    shells: list[ShellSummary]


@dataclass(frozen=True, slots=True)
class SignalBody:
    __pydantic_config__: ClassVar[Any] = STRICT

    signal: int


@dataclass(frozen=True, slots=True)
class SignalledBody:
    processes: int


# --- events: server-sent events and the text messages of an attached WebSocket ------------------


@dataclass(frozen=True, slots=True)
class StartedBody:
    exec_id: str
    pid: int
    existing: bool


@dataclass(frozen=True, slots=True)
class OutputBody:
    channel: Channel
    offset: int
    text: str
    base64: str | None = None


@dataclass(frozen=True, slots=True)
class ExitedBody:
    verdict: Verdict
    exited: Exited


EventBody = StartedBody | OutputBody | ExitedBody
EVENT_BODIES: dict[str, type[StartedBody] | type[OutputBody] | type[ExitedBody]] = {
    "started": StartedBody,
    "output": OutputBody,
    "exited": ExitedBody,
}


def event_body(exec_id: str, event: ExecEvent) -> tuple[str, EventBody]:
    """The event's name on the wire and its body."""
    if isinstance(event, Started):
        return "started", StartedBody(exec_id, event.pid, event.existing)
    if isinstance(event, Output):
        text, exact = text_and_base64(event.data)
        return "output", OutputBody(event.channel, event.offset, text, exact)
    return "exited", ExitedBody(verdict_of(event), event)


def event_of(body: EventBody) -> ExecEvent:
    if isinstance(body, StartedBody):
        return Started(body.pid, body.existing)
    if isinstance(body, OutputBody):
        return Output(body.channel, body.offset, bytes_of(body.text, body.base64))
    return body.exited
