"""Commands: in the conversation's shell, or in the background."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import hashlib
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from typing import Any, Final

from sandlot.client.async_exec import AsyncExec
from sandlot.client.async_session import AsyncSession
from sandlot.client.result import Result
from sandlot.domain.computer import ShellSummary
from sandlot.domain.errors import InvalidRequest, NotFound, SandlotError, Unsupported
from sandlot.domain.execution import Channel, ExecEvent, Exited, Output, ResultFold
from sandlot.domain.ids import new_exec_id
from sandlot.domain.session import SessionState
from sandlot.integrations.foreground import kill_unwanted
from sandlot.integrations.model_text import DEFAULT_CHARACTERS, for_model, plain, shortened
from sandlot.integrations.toolbox.answer import Answer, told

SHELL: Final = "main"
TIMEOUT_S: Final = 120.0
MAX_TIMEOUT_S: Final = 600.0
# What is kept of a command's output, and how much of it goes into an answer's data beside the text.
KEPT_BYTES: Final = 8 * 1024 * 1024
DATA_BYTES: Final = 1024 * 1024
OUTPUT_FOLDER: Final = "/tmp/.sandlot-output"  # noqa: S108  in the sandbox, which has one user
OUTPUT_FILES: Final = 4  # the newest stay; /tmp is small
READ_OUTPUT_S: Final = 30.0  # at most, however long a model wants to wait
QUIET_S: Final = 0.3  # without news: what there is so far has been read
JOB: Final = "job-"
# A model's programs are asked for text, not for a show.
ENV: Final = {"TERM": "dumb", "PAGER": "cat", "GIT_PAGER": "cat"}

OnOutput = Callable[[str], None]


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
) -> Answer:
    """``call_id`` names the call: the same one again gives the first one's result and runs nothing twice.

    Cancelled, it ends the command that it waits for.
    """
    if not 0 < timeout_s <= MAX_TIMEOUT_S:
        raise InvalidRequest(
            f"timeout_s is at most {MAX_TIMEOUT_S:.0f} seconds; start what takes longer in the background"
        )
    exec_id = new_exec_id() if call_id is None else exec_id_of(call_id)
    if background:
        return await _begin_job(session, command, exec_id)
    try:
        result = await _run(session, command, timeout_s, exec_id, on_output)
    except asyncio.CancelledError:
        # Nobody wants it any more. A job goes on, and so does the command of a caller that just dies.
        await kill_unwanted(session, exec_id)
        raise
    path = await _kept_in_full(session, result, limit)
    return Answer(for_model(result, limit=limit, path=path), _data(result, path), failed=not result.ok)


@told
async def restart(session: AsyncSession) -> Answer:
    """A new shell; where the sandbox is lost, a new sandbox."""
    if session.state is SessionState.LOST:
        await session.recreate()
        data = {"session_id": session.id, "generation": session.generation}
        return Answer("[a new, empty sandbox: of the lost one there is nothing in it]", data)
    with contextlib.suppress(NotFound):
        await session.close_shell(SHELL)
    return Answer("[the shell is new: its folder is /workspace, its variables are gone; files are as before]")


@told
async def read_output(
    session: AsyncSession, job: str, *, since: int = 0, wait_s: float = 0, limit: int = DEFAULT_CHARACTERS
) -> Answer:
    """What a job in the background has written from an offset on; waits up to ``wait_s`` for its end."""
    execution = await _job(session, job)
    wait_s = min(max(0.0, wait_s), READ_OUTPUT_S)
    status = await execution.status(wait_s)
    text, reached, exited = await _so_far(execution, since)
    data = {"job": job, "running": status.running and exited is None, "next_since": reached}
    shown = shortened(plain(text), limit).rstrip("\n") if text.strip() else "(no new output)"
    if exited is None:
        return Answer(f"{shown}\n[{job} is running; since={reached} gives what comes next]", data)
    return Answer(
        f"{shown}\n[{job} has ended with exit code {exited.code}]", data | {"exit_code": exited.code}
    )


@told
async def stop(session: AsyncSession, job: str) -> Answer:
    execution = await _job(session, job)
    count = await execution.kill()
    with contextlib.suppress(TimeoutError):
        await execution.wait(5)
    ended = "had ended before" if count == 0 else "is stopped, with all that it had started"
    return Answer(f"[{job} {ended}]", {"job": job, "signalled": count})


# --- in the shell -----------------------------------------------------------------------------


async def _run(
    session: AsyncSession, command: str, timeout_s: float, exec_id: str, on_output: OnOutput | None
) -> Result:
    try:
        return await _streamed(session, command, timeout_s, exec_id, on_output, SHELL)
    except Unsupported:
        # An image without bash has no shells that last; each command then starts where the sandbox does.
        return await _streamed(session, command, timeout_s, exec_id, on_output, None)


async def _streamed(
    session: AsyncSession,
    command: str,
    timeout_s: float,
    exec_id: str,
    on_output: OnOutput | None,
    shell: str | None,
) -> Result:
    if on_output is None:
        return await session.run(
            command, timeout_s=timeout_s, exec_id=exec_id, output_limit=KEPT_BYTES, shell=shell, env=ENV
        )
    fold = ResultFold(exec_id, KEPT_BYTES)
    decoding = _Decoding(on_output)
    events = session.stream(
        command, timeout_s=timeout_s, exec_id=exec_id, output_limit=KEPT_BYTES, shell=shell, env=ENV
    )
    async with contextlib.aclosing(events):
        async for event in events:
            decoding.see(event)
            if (result := fold.add(event)) is not None:
                return Result(replace(result, session_id=session.id, generation=session.generation))
    raise SandlotError("the command's events ended without its exit", may_have_executed=True)


class _Decoding:
    """Pieces of bytes as pieces of text: a character may be cut in two by the way."""

    def __init__(self, on_output: OnOutput) -> None:
        self._on_output = on_output
        self._decoders = {channel: codecs.getincrementaldecoder("utf-8")("replace") for channel in Channel}

    def see(self, event: ExecEvent) -> None:
        if isinstance(event, Output) and (text := self._decoders[event.channel].decode(event.data)):
            self._on_output(text)


async def _kept_in_full(session: AsyncSession, result: Result, limit: int) -> str | None:
    """The output, where it is too long for a model, as a file that the model can look into."""
    if len(result.raw.output) <= limit:
        return None
    path = f"{OUTPUT_FOLDER}/{result.exec_id}.txt"
    try:
        await session.files.write(path, result.raw.output)
        entries = sorted(await session.files.list(OUTPUT_FOLDER), key=lambda entry: entry.mtime_ms)
        for entry in entries[:-OUTPUT_FILES]:
            await session.files.remove(f"{OUTPUT_FOLDER}/{entry.name}", missing_ok=True)
    except SandlotError:
        return None  # no room for it: the answer then has the head and the tail alone
    return path


def _data(result: Result, path: str | None) -> dict[str, Any]:
    return {
        "exit_code": result.exit_code,
        "stdout": result.raw.stdout[:DATA_BYTES].decode("utf-8", "replace"),
        "stderr": result.raw.stderr[:DATA_BYTES].decode("utf-8", "replace"),
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


# --- in the background ------------------------------------------------------------------------


def exec_id_of(call_id: str) -> str:
    return "call-" + hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()[:32]


async def _begin_job(session: AsyncSession, command: str, exec_id: str) -> Answer:
    job = JOB + hashlib.sha256(exec_id.encode()).hexdigest()[:8]
    if any(summary.exec_id == job for summary in await session.execs()):
        return _begun(session, job)  # the shell's exports may have changed; the job stays what it is
    shell = await _idle_shell(session)
    exports = ""
    if shell is not None:
        # A job is a process of its own; it shall see what the shell has been told.
        exports = (await session.shell(SHELL).run("export -p", output_limit=256 * 1024)).stdout
    execution = await session.start(
        f"{exports}\n{command}",
        cwd=shell.cwd if shell else None,
        env=ENV,
        exec_id=job,
        output_limit=None,  # the newest output is kept, however much there is
    )
    await execution.detach()  # who is attached and does not read would hold the job up
    return _begun(session, job)


def _begun(session: AsyncSession, job: str) -> Answer:
    text = f"[started in the background as {job}; read_output shows what it writes, stop ends it]"
    return Answer(text, {"job": job, "session_id": session.id, "generation": session.generation})


async def _idle_shell(session: AsyncSession) -> ShellSummary | None:
    for shell in await session.shells():
        if shell.name == SHELL and not shell.busy:
            return shell
    return None


async def _job(session: AsyncSession, job: str) -> AsyncExec:
    known = [summary.exec_id for summary in await session.execs() if summary.exec_id.startswith(JOB)]
    if job not in known:
        jobs = ", ".join(known[-20:]) or "none"
        raise NotFound(f"there is no job {job[:64]!r} in the background; there are: {jobs}")
    return await session.exec(job)


async def _so_far(execution: AsyncExec, since: int) -> tuple[str, int, Exited | None]:
    """Output from an offset on, where it ends, and the exit if there was one."""
    output, reached, exited = bytearray(), since, None
    async with contextlib.aclosing(_news(execution, since)) as news:
        async for event in news:
            if isinstance(event, Output):
                if event.offset > reached and output:
                    output += b"\n[... output that is no longer kept ...]\n"
                output += event.data
                reached = event.offset + len(event.data)
            elif isinstance(event, Exited):
                exited = event
    return bytes(output).decode("utf-8", "replace"), reached, exited


async def _news(execution: AsyncExec, since: int) -> AsyncGenerator[ExecEvent, None]:
    """Its events until nothing comes for a moment; a job that never pauses is left after a while."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + 10 * QUIET_S
    events = execution.events(since)
    async with contextlib.aclosing(events):
        while loop.time() < deadline:
            try:
                async with asyncio.timeout(QUIET_S):
                    event = await anext(events)
            except (TimeoutError, StopAsyncIteration):
                return
            yield event
