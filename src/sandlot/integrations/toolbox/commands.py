"""Commands in the conversation's shell, and jobs in the background."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import asdict, replace
from typing import Any, Final, TypeVar

from sandlot.client.async_exec import AsyncExec
from sandlot.client.async_session import AsyncSession
from sandlot.client.callbacks import TextDecoder
from sandlot.client.options import ExecOptions
from sandlot.client.result import Result, marked_bytes, text_of
from sandlot.domain.errors import (
    Conflict,
    InvalidRequest,
    LinkInterrupted,
    NotFound,
    SandlotError,
    Unavailable,
    Unsupported,
)
from sandlot.domain.execution import ExecEvent, Exited, Output, ResultFold, verdict_of
from sandlot.domain.ids import new_exec_id
from sandlot.domain.kept_output import Omitted
from sandlot.domain.session import SessionState
from sandlot.integrations.foreground import kill_abandoned
from sandlot.integrations.model_text import (
    DEFAULT_CHARACTERS,
    describe_verdict,
    format_output,
    format_result,
    head_and_tail,
    recreated_note,
)
from sandlot.integrations.toolbox.answer import Answer, toolbox_operation
from sandlot.integrations.toolbox.retention import write_and_prune

SHELL: Final = "main"
TIMEOUT_S: Final = 120.0
MAX_TIMEOUT_S: Final = 600.0
# How much of a command's output is kept, and how much of it goes into an answer's data.
MAX_OUTPUT_BYTES: Final = 8 * 1024 * 1024
MAX_DATA_BYTES: Final = 1024 * 1024
OUTPUT_FOLDER: Final = "/tmp/.sandlot-output"  # noqa: S108  in the sandbox, which has one user
MAX_OUTPUT_FILES: Final = 4  # the newest stay; /tmp is small
MAX_WAIT_S: Final = 30.0  # the longest wait that a model can ask for
QUIET_S: Final = 0.3  # silence on an open connection: all output so far has been read
READ_TIMEOUT_S: Final = 10.0  # to open the connection, and to read all output of an ended job
STOP_TIMEOUT_S: Final = 5.0
MAX_READ_BYTES: Final = 1024 * 1024  # equals the amount that is kept of a job's output
EXPORTS_TIMEOUT_S: Final = 5.0
MAX_EXPORTS_BYTES: Final = 256 * 1024
JOB_PREFIX: Final = "job-"
# Ask programs for plain text, without colours or pagers.
ENV: Final = {"TERM": "dumb", "PAGER": "cat", "GIT_PAGER": "cat"}

OnOutput = Callable[[str], None]
T = TypeVar("T")


@toolbox_operation
async def bash(
    session: AsyncSession,
    command: str,
    *,
    timeout_s: float = TIMEOUT_S,
    background: bool = False,
    call_id: str | None = None,
    on_output: OnOutput | None = None,
    limit: int = DEFAULT_CHARACTERS,
    merge_output: bool = True,
    approved: bool = False,
) -> Answer:
    """Run a command in the conversation's shell, or start it as a background job.

    ``call_id`` identifies the call: a repeated call runs nothing and returns the first result.
    ``merge_output=False`` separates stdout from stderr, for programs that do not need their order.
    ``approved``: a person has approved the command.
    If this call is cancelled, the command that it waits for is killed.
    """
    if not 0 < timeout_s <= MAX_TIMEOUT_S:
        raise InvalidRequest(
            f"timeout_s must be more than 0 and at most {MAX_TIMEOUT_S:.0f} seconds. Run longer "
            "commands in the background."
        )
    exec_id = exec_id_for_call(call_id, command)
    if background:
        return await _start_job(session, command, exec_id, approved)
    options: ExecOptions = {
        "timeout_s": timeout_s,
        "shell": SHELL,
        "output_limit": MAX_OUTPUT_BYTES,
        "env": ENV,
        "merge_output": merge_output,
        "approved": approved,
    }
    try:
        result = await run_in_shell(
            session,
            exec_id,
            options,
            lambda options: _run_streaming(session, command, exec_id, on_output, options),
        )
    except asyncio.CancelledError:
        # The caller no longer wants the result. A job continues, and so does the command of a
        # caller that crashes without cancelling.
        await kill_abandoned(session, exec_id)
        raise
    path = await _save_full_output(session, result, limit)
    return Answer(
        format_result(result, limit=limit, path=path), _result_data(result, path), failed=not result.ok
    )


@toolbox_operation
async def restart(session: AsyncSession, *, before_exec: str | None = None) -> Answer:
    """Start a new shell, or a new sandbox if the sandbox is lost.

    ``before_exec``: the exec that will use the new shell. If that exec has already started, so has
    the new shell. Another restart would kill the exec or discard its state, so this does nothing.
    """
    if (
        before_exec is not None
        and session.state is not SessionState.LOST
        and await _exec_exists(session, before_exec)
    ):
        return Answer("")
    if session.state is SessionState.LOST:
        await session.recreate()
        data = {"session_id": session.id, "generation": session.generation}
        answer = Answer(recreated_note(session.info), data)
    else:
        with contextlib.suppress(NotFound):
            await session.close_shell(SHELL)
        answer = Answer(
            "[this is a new shell: it starts in /workspace without the old variables; files are unchanged]"
        )
    await session.run(":")  # this answer reports a new sandbox, so the next one need not
    return answer


@toolbox_operation
async def read_output(
    session: AsyncSession, job: str, *, since: int = 0, wait_s: float = 0, limit: int = DEFAULT_CHARACTERS
) -> Answer:
    """Read a background job's output from an offset, after waiting up to ``wait_s`` for its end."""
    execution = await _job(session, job)
    wait_s = min(max(0.0, wait_s), MAX_WAIT_S)
    status = await execution.status(wait_s)
    output, end_offset, exited = await _read_available(execution, since, running=status.running)
    data: dict[str, Any] = {
        "job": job,
        "running": status.running and exited is None,
        "next_since": end_offset,
    }
    text = format_output(output, limit).rstrip("\n") if output.strip() else "(no new output)"
    if exited is None:
        more = "is running" if status.running else "has ended, and there is more output to read"
        return Answer(f"{text}\n[{job} {more}; read on with since={end_offset}]", data)
    why = describe_verdict(verdict_of(exited), exited.duration_ms)
    ended = f"has ended with exit code {exited.code}" + (f": {why}" if why else "")
    return Answer(f"{text}\n[{job} {ended}]", data | {"exit_code": exited.code})


@toolbox_operation
async def stop(session: AsyncSession, job: str) -> Answer:
    """Kill a background job with all its processes."""
    execution = await _job(session, job)
    count = await execution.kill()
    ended = "had already ended" if count == 0 else "was stopped, with everything it started"
    try:
        await execution.wait(STOP_TIMEOUT_S)
    except (TimeoutError, LinkInterrupted, Unavailable):
        ended = "was told to stop but may still be running; check with read_output"
    return Answer(f"[{job} {ended}]", {"job": job, "signalled": count})


# --- in the shell -----------------------------------------------------------------------------


async def run_in_shell(
    session: AsyncSession,
    exec_id: str,
    options: ExecOptions,
    run: Callable[[ExecOptions], Awaitable[Result]],
) -> Result:
    """Call ``run`` with the options that the sandbox supports.

    ``exec_id`` is derived from the call and its command.
    """
    identified = options.copy()
    identified["exec_id"] = exec_id
    try:
        return await _with_fallbacks(identified, run)
    except Conflict:
        # The same call already started this command with other options, such as another timeout.
        # Return the result of that exec.
        return await (await session.exec(exec_id)).wait()


async def _with_fallbacks(options: ExecOptions, run: Callable[[ExecOptions], Awaitable[T]]) -> T:
    """Call ``run``, and drop options that the sandbox does not support.

    An image without bash has no persistent shells; each command then starts in the sandbox's
    default state. The agent of an older sandbox may be unable to merge output.
    """
    shells = dict.fromkeys((options.get("shell"), None))
    merges = dict.fromkeys((options.get("merge_output", False), False))
    last_error: Unsupported | None = None
    for shell in shells:
        for merge in merges:
            attempt = options.copy()
            attempt["shell"], attempt["merge_output"] = shell, merge
            try:
                return await run(attempt)
            except Unsupported as error:
                last_error = error
    assert last_error is not None
    raise last_error


async def _run_streaming(
    session: AsyncSession, command: str, exec_id: str, on_output: OnOutput | None, options: ExecOptions
) -> Result:
    if on_output is None:
        return await session.run(command, **options)
    fold = ResultFold(exec_id, MAX_OUTPUT_BYTES)
    decoder = TextDecoder()
    events = session.stream(command, **options)
    async with contextlib.aclosing(events):
        async for event in events:
            if isinstance(event, Output) and (text := decoder.decode(event)):
                on_output(text)
            if (result := fold.add(event)) is not None:
                return Result(replace(result, session_id=session.id, generation=session.generation))
    raise SandlotError("The command's events ended without an exit event.", may_have_executed=True)


async def _save_full_output(session: AsyncSession, result: Result, limit: int) -> str | None:
    """Save output that is too long for a model to a file in the sandbox; return its path."""
    if len(result.raw.output) <= limit:
        return None
    name = f"{result.exec_id}.txt"
    try:
        output = marked_bytes(result.raw.output, result.raw.output_omitted)
        await write_and_prune(session, OUTPUT_FOLDER, name, output, MAX_OUTPUT_FILES)
    except SandlotError:
        return None  # no space: the answer then has only the head and the tail
    return f"{OUTPUT_FOLDER}/{name}"


def _result_data(result: Result, path: str | None) -> dict[str, Any]:
    return {
        "exit_code": result.exit_code,
        "stdout": _channel_text(result.raw.stdout, result.raw.stdout_omitted),
        "stderr": _channel_text(result.raw.stderr, result.raw.stderr_omitted),
        "verdict": result.verdict.value,
        "denied": [asdict(denied) for denied in result.denied],
        "timed_out": result.timed_out,
        "truncated": result.truncated,
        "duration_ms": result.duration_ms,
        "output_bytes": result.output_bytes,
        "output_path": path,
        "exec_id": result.exec_id,
        "session_id": result.session_id,
        "generation": result.generation,
    }


def _channel_text(data: bytes, omitted: Omitted | None) -> str:
    """At most ``MAX_DATA_BYTES`` from both ends, with a count of the bytes left out."""
    if len(data) > MAX_DATA_BYTES:
        head, tail = head_and_tail(data, MAX_DATA_BYTES, omitted)
        missing = 0 if omitted is None else omitted.bytes
        omitted = Omitted(len(head), missing + len(data) - len(head) - len(tail))
        data = head + tail
    return text_of(data, omitted, marked=True)


# --- in the background ------------------------------------------------------------------------


def exec_id_for_call(call_id: str | None, command: str) -> str:
    """An exec id from the call and its command, because some models reuse their call ids."""
    if not call_id:
        return new_exec_id()
    identity = f"{call_id}\0{command}".encode("utf-8", "replace")
    return "call-" + hashlib.sha256(identity).hexdigest()[:32]


def job_id(exec_id: str) -> str:
    """The id of a background job. It is short because models copy it."""
    return JOB_PREFIX + hashlib.sha256(exec_id.encode()).hexdigest()[:8]


async def _exec_exists(session: AsyncSession, exec_id: str) -> bool:
    return any(summary.exec_id == exec_id for summary in await session.execs())


async def _start_job(session: AsyncSession, command: str, exec_id: str, approved: bool) -> Answer:
    job = job_id(exec_id)
    if await _exec_exists(session, job):
        # The shell's exports may have changed since, but the job keeps the ones it started with.
        return _job_started(session, job)
    # A job is a separate process, so it is given the shell's folder and exported variables.
    shell = next((shell for shell in await session.shells() if shell.name == SHELL), None)
    exports = None if shell is None or shell.busy else await _exports(session)
    options: ExecOptions = {
        "cwd": shell.cwd if shell else None,
        "env": ENV,
        "exec_id": job,
        "output_limit": None,  # no limit: the newest output is kept for as long as the job runs
        "merge_output": True,
        "approved": approved,
    }
    command = f"{exports or ''}\n{command}"
    execution = await _with_fallbacks(options, lambda options: session.start(command, **options))
    await execution.detach()  # an attached client that does not read would block the job
    return _job_started(session, job, without_variables=shell is not None and exports is None)


def _job_started(session: AsyncSession, job: str, *, without_variables: bool = False) -> Answer:
    text = f"[started in the background as {job}; use read_output to see its output, stop to end it]"
    if without_variables:
        text += "\n[the job does not have the shell's variables: the shell is busy, or has too many]"
    return Answer(text, {"job": job, "session_id": session.id, "generation": session.generation})


async def _exports(session: AsyncSession) -> str | None:
    """The shell's exports; None if the shell does not answer in time or they are too long."""
    try:
        async with asyncio.timeout(EXPORTS_TIMEOUT_S):
            exports = await session.shell(SHELL).run("export -p", output_limit=MAX_EXPORTS_BYTES)
    except TimeoutError:
        return None
    return None if exports.truncated or not exports.ok else exports.stdout


async def _job(session: AsyncSession, job: str) -> AsyncExec:
    known = [summary.exec_id for summary in await session.execs() if summary.exec_id.startswith(JOB_PREFIX)]
    if job not in known:
        jobs = ", ".join(known[-20:]) or "none"
        raise NotFound(f"Unknown background job {job[:64]!r}. Known jobs: {jobs}.")
    return await session.exec(job)


async def _read_available(
    execution: AsyncExec, since: int, *, running: bool
) -> tuple[bytes, int, Exited | None]:
    """Bounded output from an offset, the offset at its end, and the exit if it was reached."""
    output, end_offset, exited = bytearray(), since, None
    async with contextlib.aclosing(_available_events(execution, since, running)) as events:
        async for event in events:
            if isinstance(event, Output):
                if event.offset > end_offset and output:
                    output += b"\n[... output that is no longer kept ...]\n"
                output += event.data
                end_offset = event.offset + len(event.data)
                if len(output) >= MAX_READ_BYTES:
                    break
            elif isinstance(event, Exited):
                exited = event
    return bytes(output), end_offset, exited


async def _available_events(
    execution: AsyncExec, since: int, running: bool
) -> AsyncGenerator[ExecEvent, None]:
    """The job's events, until ``QUIET_S`` pass without one.

    A job that never pauses is read until a deadline. The quiet time counts from when the connection
    is open. All events of an ended job are read.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + READ_TIMEOUT_S
    max_wait_s, connected = READ_TIMEOUT_S, False
    events = execution.events(since)
    async with contextlib.aclosing(events):
        while (remaining_s := deadline - loop.time()) > 0:
            try:
                async with asyncio.timeout(min(max_wait_s, remaining_s)):
                    event = await anext(events)
            except StopAsyncIteration:
                return
            except TimeoutError:
                break
            if not connected and running:
                max_wait_s, deadline = QUIET_S, loop.time() + 10 * QUIET_S
            connected = True
            yield event
    if not connected:
        raise LinkInterrupted("The job's output did not arrive in time. Try again.", may_have_executed=False)
