"""Commands: in the conversation's shell, or in the background."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace
from typing import Any, Final, TypeVar

from sandlot.client.async_exec import AsyncExec
from sandlot.client.async_session import AsyncSession
from sandlot.client.callbacks import Texts
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
from sandlot.integrations.foreground import kill_unwanted
from sandlot.integrations.model_text import DEFAULT_CHARACTERS, both_ends, for_model, shown, why_of
from sandlot.integrations.toolbox.answer import Answer, told
from sandlot.integrations.toolbox.keeping import keep_newest

SHELL: Final = "main"
TIMEOUT_S: Final = 120.0
MAX_TIMEOUT_S: Final = 600.0
# What is kept of a command's output, and how much of it goes into an answer's data beside the text.
KEPT_BYTES: Final = 8 * 1024 * 1024
DATA_BYTES: Final = 1024 * 1024
OUTPUT_FOLDER: Final = "/tmp/.sandlot-output"  # noqa: S108  in the sandbox, which has one user
OUTPUT_FILES: Final = 4  # the newest stay; /tmp is small
READ_OUTPUT_S: Final = 30.0  # at most, however long a model wants to wait
QUIET_S: Final = 0.3  # without news, on a connection that stands: what there is so far has been read
NEWS_S: Final = 10.0  # until the connection stands; and for all that a job has left behind
STOP_S: Final = 5.0
READ_OUTPUT_BYTES: Final = 1024 * 1024  # as much as is kept of a job's output
EXPORTS_S: Final = 5.0
EXPORTS_BYTES: Final = 256 * 1024
JOB: Final = "job-"
# A model's programs are asked for text, not for a show.
ENV: Final = {"TERM": "dumb", "PAGER": "cat", "GIT_PAGER": "cat"}

OnOutput = Callable[[str], None]
T = TypeVar("T")


@told
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
) -> Answer:
    """``call_id`` names the call: the same one again gives the first one's result and runs nothing twice.

    ``merge_output=False``: for a program that wants stdout and stderr apart more than their order.
    Cancelled, it ends the command that it waits for.
    """
    if not 0 < timeout_s <= MAX_TIMEOUT_S:
        raise InvalidRequest(
            f"timeout_s is at most {MAX_TIMEOUT_S:.0f} seconds; start what takes longer in the background"
        )
    exec_id = exec_id_of(call_id, command)
    if background:
        return await _begin_job(session, command, exec_id)
    options: ExecOptions = {
        "timeout_s": timeout_s,
        "shell": SHELL,
        "output_limit": KEPT_BYTES,
        "env": ENV,
        "merge_output": merge_output,
    }
    try:
        result = await in_shell(
            session,
            exec_id,
            options,
            lambda options: _streamed(session, command, exec_id, on_output, options),
        )
    except asyncio.CancelledError:
        # Nobody wants it any more. A job goes on, and so does the command of a caller that just dies.
        await kill_unwanted(session, exec_id)
        raise
    path = await _kept_in_full(session, result, limit)
    return Answer(for_model(result, limit=limit, path=path), _data(result, path), failed=not result.ok)


@told
async def restart(session: AsyncSession, *, before: str | None = None) -> Answer:
    """A new shell; where the sandbox is lost, a new sandbox. ``before``: the exec that it is to be new for.

    If that one has begun, this was done: to do it again would end it, or throw away what it left.
    """
    if before is not None and session.state is not SessionState.LOST and await _is_known(session, before):
        return Answer("")
    if session.state is SessionState.LOST:
        await session.recreate()
        data = {"session_id": session.id, "generation": session.generation}
        answer = Answer("[a new, empty sandbox: of the lost one there is nothing in it]", data)
    else:
        with contextlib.suppress(NotFound):
            await session.close_shell(SHELL)
        answer = Answer(
            "[the shell is new: its folder is /workspace, its variables are gone; files are as before]"
        )
    await session.run(":")  # if the sandbox is new, this answer tells it, and the next one need not
    return answer


@told
async def read_output(
    session: AsyncSession, job: str, *, since: int = 0, wait_s: float = 0, limit: int = DEFAULT_CHARACTERS
) -> Answer:
    """What a job in the background has written from an offset on; waits up to ``wait_s`` for its end."""
    execution = await _job(session, job)
    wait_s = min(max(0.0, wait_s), READ_OUTPUT_S)
    status = await execution.status(wait_s)
    output, reached, exited = await _so_far(execution, since, running=status.running)
    data: dict[str, Any] = {"job": job, "running": status.running and exited is None, "next_since": reached}
    text = shown(output, limit).rstrip("\n") if output.strip() else "(no new output)"
    if exited is None:
        more = "is running" if status.running else "has ended, and there is more to read"
        return Answer(f"{text}\n[{job} {more}; since={reached} gives what comes next]", data)
    why = why_of(verdict_of(exited), exited.duration_ms)
    ended = f"has ended with exit code {exited.code}" + (f": {why}" if why else "")
    return Answer(f"{text}\n[{job} {ended}]", data | {"exit_code": exited.code})


@told
async def stop(session: AsyncSession, job: str) -> Answer:
    execution = await _job(session, job)
    count = await execution.kill()
    ended = "had ended before" if count == 0 else "is stopped, with all that it had started"
    try:
        await execution.wait(STOP_S)
    except (TimeoutError, LinkInterrupted, Unavailable):
        ended = "was told to stop and has not ended yet, as far as is known; read_output says when it has"
    return Answer(f"[{job} {ended}]", {"job": job, "signalled": count})


# --- in the shell -----------------------------------------------------------------------------


async def in_shell(
    session: AsyncSession,
    exec_id: str,
    options: ExecOptions,
    run: Callable[[ExecOptions], Awaitable[Result]],
) -> Result:
    """``run`` with these options, as far as the sandbox can. ``exec_id`` is of the call and its command."""
    named = options.copy()
    named["exec_id"] = exec_id
    try:
        return await _as_far_as_it_can(named, run)
    except Conflict:
        # The same call and command, begun with another timeout or in another way: its result is the one.
        return await (await session.exec(exec_id)).wait()


async def _as_far_as_it_can(options: ExecOptions, run: Callable[[ExecOptions], Awaitable[T]]) -> T:
    """An image without bash has no shells that last; each command then starts where the sandbox does. And the
    agent of a sandbox that is older than this program may not know how to merge output.
    """
    shells = dict.fromkeys((options.get("shell"), None))
    merges = dict.fromkeys((options.get("merge_output", False), False))
    refused: Unsupported | None = None
    for shell in shells:
        for merge in merges:
            tried = options.copy()
            tried["shell"], tried["merge_output"] = shell, merge
            try:
                return await run(tried)
            except Unsupported as error:
                refused = error
    assert refused is not None
    raise refused


async def _streamed(
    session: AsyncSession, command: str, exec_id: str, on_output: OnOutput | None, options: ExecOptions
) -> Result:
    if on_output is None:
        return await session.run(command, **options)
    fold = ResultFold(exec_id, KEPT_BYTES)
    texts = Texts()
    events = session.stream(command, **options)
    async with contextlib.aclosing(events):
        async for event in events:
            if isinstance(event, Output) and (text := texts.of(event)):
                on_output(text)
            if (result := fold.add(event)) is not None:
                return Result(replace(result, session_id=session.id, generation=session.generation))
    raise SandlotError("the command's events ended without its exit", may_have_executed=True)


async def _kept_in_full(session: AsyncSession, result: Result, limit: int) -> str | None:
    """The output, where it is too long for a model, as a file that the model can look into."""
    if len(result.raw.output) <= limit:
        return None
    name = f"{result.exec_id}.txt"
    try:
        output = marked_bytes(result.raw.output, result.raw.output_omitted)
        await keep_newest(session, OUTPUT_FOLDER, name, output, OUTPUT_FILES)
    except SandlotError:
        return None  # no room for it: the answer then has the head and the tail alone
    return f"{OUTPUT_FOLDER}/{name}"


def _data(result: Result, path: str | None) -> dict[str, Any]:
    return {
        "exit_code": result.exit_code,
        "stdout": _text(result.raw.stdout, result.raw.stdout_omitted),
        "stderr": _text(result.raw.stderr, result.raw.stderr_omitted),
        "verdict": result.verdict.value,
        "timed_out": result.timed_out,
        "truncated": result.truncated,
        "duration_ms": result.duration_ms,
        "output_bytes": result.output_bytes,
        "output_path": path,
        "exec_id": result.exec_id,
        "session_id": result.session_id,
        "generation": result.generation,
    }


def _text(data: bytes, omitted: Omitted | None) -> str:
    """Up to ``DATA_BYTES``, from both ends, with the count of what is missing between them."""
    if len(data) > DATA_BYTES:
        head, tail = both_ends(data, DATA_BYTES, omitted)
        missing = 0 if omitted is None else omitted.bytes
        omitted = Omitted(len(head), missing + len(data) - len(head) - len(tail))
        data = head + tail
    return text_of(data, omitted, marked=True)


# --- in the background ------------------------------------------------------------------------


def exec_id_of(call_id: str | None, command: str) -> str:
    """Of the call and what it runs: some models give the ids of their calls twice."""
    if not call_id:
        return new_exec_id()
    named = f"{call_id}\0{command}".encode("utf-8", "replace")
    return "call-" + hashlib.sha256(named).hexdigest()[:32]


def job_of(exec_id: str) -> str:
    """Short, since models copy it."""
    return JOB + hashlib.sha256(exec_id.encode()).hexdigest()[:8]


async def _is_known(session: AsyncSession, exec_id: str) -> bool:
    return any(summary.exec_id == exec_id for summary in await session.execs())


async def _begin_job(session: AsyncSession, command: str, exec_id: str) -> Answer:
    job = job_of(exec_id)
    if await _is_known(session, job):
        return _begun(session, job)  # the shell's exports may have changed; the job stays what it is
    # A job is a process of its own; it shall see what the shell has been told.
    shell = next((shell for shell in await session.shells() if shell.name == SHELL), None)
    exports = None if shell is None or shell.busy else await _exports(session)
    options: ExecOptions = {
        "cwd": shell.cwd if shell else None,
        "env": ENV,
        "exec_id": job,
        "output_limit": None,  # the newest output is kept, however much there is, and for as long as it runs
        "merge_output": True,
    }
    command = f"{exports or ''}\n{command}"
    execution = await _as_far_as_it_can(options, lambda options: session.start(command, **options))
    await execution.detach()  # who is attached and does not read would hold the job up
    return _begun(session, job, without_variables=shell is not None and exports is None)


def _begun(session: AsyncSession, job: str, *, without_variables: bool = False) -> Answer:
    text = f"[started in the background as {job}; read_output shows what it writes, stop ends it]"
    if without_variables:
        text += "\n[the shell is busy or has too many variables: they could not be handed to the job]"
    return Answer(text, {"job": job, "session_id": session.id, "generation": session.generation})


async def _exports(session: AsyncSession) -> str | None:
    """None if they cannot be had now, or are too many to be handed on."""
    try:
        async with asyncio.timeout(EXPORTS_S):
            exports = await session.shell(SHELL).run("export -p", output_limit=EXPORTS_BYTES)
    except TimeoutError:
        return None
    return None if exports.truncated or not exports.ok else exports.stdout


async def _job(session: AsyncSession, job: str) -> AsyncExec:
    known = [summary.exec_id for summary in await session.execs() if summary.exec_id.startswith(JOB)]
    if job not in known:
        jobs = ", ".join(known[-20:]) or "none"
        raise NotFound(f"there is no job {job[:64]!r} in the background; there are: {jobs}")
    return await session.exec(job)


async def _so_far(execution: AsyncExec, since: int, *, running: bool) -> tuple[bytes, int, Exited | None]:
    """Output from an offset on, up to a bound; where it ends; and the exit if it was reached."""
    output, reached, exited = bytearray(), since, None
    async with contextlib.aclosing(_news(execution, since, running)) as news:
        async for event in news:
            if isinstance(event, Output):
                if event.offset > reached and output:
                    output += b"\n[... output that is no longer kept ...]\n"
                output += event.data
                reached = event.offset + len(event.data)
                if len(output) >= READ_OUTPUT_BYTES:
                    break
            elif isinstance(event, Exited):
                exited = event
    return bytes(output), reached, exited


async def _news(execution: AsyncExec, since: int, running: bool) -> AsyncGenerator[ExecEvent, None]:
    """Its events until nothing comes for a moment; a job that never pauses is left after a while.

    That moment begins when the connection stands. A job that has ended is read to its end.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + NEWS_S
    patience, stands = NEWS_S, False
    events = execution.events(since)
    async with contextlib.aclosing(events):
        while (left := deadline - loop.time()) > 0:
            try:
                async with asyncio.timeout(min(patience, left)):
                    event = await anext(events)
            except StopAsyncIteration:
                return
            except TimeoutError:
                break
            if not stands and running:
                patience, deadline = QUIET_S, loop.time() + 10 * QUIET_S
            stands = True
            yield event
    if not stands:
        raise LinkInterrupted("the job's output could not be had in time: ask again", may_have_executed=False)
