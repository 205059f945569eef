"""Python code in the conversation's context, whose variables stay."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

from sandlot.client.async_session import AsyncSession
from sandlot.client.code.async_code import CodeOptions
from sandlot.client.code.code_result import CodeResult
from sandlot.domain.code.contexts import Language
from sandlot.domain.code.result import Value
from sandlot.domain.errors import InvalidRequest
from sandlot.domain.text.terminal_codes import strip_terminal_codes
from sandlot.integrations.foreground import kill_abandoned
from sandlot.integrations.model_text import DEFAULT_CHARACTERS, denial_notes, describe_verdict, shorten
from sandlot.integrations.toolbox.answer import Answer, toolbox_operation
from sandlot.integrations.toolbox.commands import MAX_TIMEOUT_S, TIMEOUT_S, OnOutput, exec_id_for_call
from sandlot.integrations.toolbox.pictures import viewable

# The forms of a value that a model reads, best first.
_READABLE: Final = ("text/markdown", "text/plain", "text/latex", "application/json", "text/html")


@toolbox_operation
async def python(
    session: AsyncSession,
    code: str,
    *,
    timeout_s: float = TIMEOUT_S,
    restart: bool = False,
    call_id: str | None = None,
    on_output: OnOutput | None = None,
    limit: int = DEFAULT_CHARACTERS,
    approved: bool = False,
) -> Answer:
    """Run Python code in the conversation's context.

    ``restart``: forget all variables first. ``call_id`` identifies the call: a repeated call runs nothing
    and returns the first result. ``approved``: a person has approved the code. If this call is cancelled,
    the code that it waits for is interrupted.
    """
    if not 0 < timeout_s <= MAX_TIMEOUT_S:
        raise InvalidRequest(f"timeout_s must be more than 0 and at most {MAX_TIMEOUT_S:.0f} seconds.")
    exec_id = exec_id_for_call(call_id, f"python\0{code}")
    if restart and not await _has_run(session, exec_id):
        await _restart(session)
        if not code.strip():
            return Answer("[Python was started again, without its variables]")
    options: CodeOptions = {"timeout_s": timeout_s, "exec_id": exec_id, "approved": approved}
    try:
        result = await session.code.run(code, on_stdout=on_output, on_stderr=on_output, **options)
    except asyncio.CancelledError:
        # The caller no longer wants the result.
        await kill_abandoned(session, exec_id)
        raise
    return code_answer(result, limit)


async def _has_run(session: AsyncSession, exec_id: str) -> bool:
    """Whether this is a repeated call, whose restart has happened already."""
    return any(known.exec_id == exec_id for known in await session.execs())


async def _restart(session: AsyncSession) -> None:
    for context in await session.code.contexts():
        if context.id == Language.PYTHON:
            await context.restart()


def code_answer(result: CodeResult, limit: int = DEFAULT_CHARACTERS) -> Answer:
    """What a model reads and sees of a cell."""
    pictures, left_out = viewable(result.results)
    parts = [strip_terminal_codes(text).rstrip("\n") for text in (result.stdout, result.stderr)]
    parts += [strip_terminal_codes(_readable(value)) for value in result.results]
    if result.error is not None:
        parts.append(result.error.traceback.rstrip("\n") or str(result.error))
    text = shorten("\n".join(part for part in parts if part), limit)
    notes = [f"[picture {number}: {picture.media_type}]" for number, picture in enumerate(pictures, 1)]
    if left_out:
        notes.append(f"[{left_out} more pictures are not shown: too many, too large, or of another type]")
    if result.truncated:
        notes.append("[the code wrote or displayed more than is kept; some of it is missing]")
    if (why := describe_verdict(result.verdict, result.duration_ms)) is not None:
        notes.append(f"[{why}. Variables are as the code left them]")
    elif not result.ok and result.error is None:
        notes.append(f"[the code failed: {result.raw.stderr.decode('utf-8', 'replace')[-1000:].strip()}]")
    notes += denial_notes(result)
    return Answer(
        "\n".join(filter(None, (text, *notes))) or "(no output)",
        _data(result, limit),
        failed=not result.ok,
        pictures=pictures,
    )


def _readable(value: Value) -> str:
    for kind in _READABLE:
        form = value.data.get(kind)
        if isinstance(form, str) and form.strip():
            return form
        if form is not None and kind == "application/json":
            return json.dumps(form, ensure_ascii=False)
    return "" if value.pictures else f"[a value of the types {', '.join(value.data)}]"


def _data(result: CodeResult, limit: int) -> dict[str, Any]:
    error = result.error
    return {
        "text": shorten(result.text, limit),
        "stdout": shorten(result.stdout, limit),
        "stderr": shorten(result.stderr, limit),
        "exception": None
        if error is None
        else {"name": error.name, "value": error.value, "traceback": shorten(error.traceback, limit)},
        "execution_count": result.execution_count,
        "verdict": result.verdict.value,
        "timed_out": result.timed_out,
        "truncated": result.truncated,
        "duration_ms": result.duration_ms,
        "exec_id": result.exec_id,
        "session_id": result.session_id,
        "generation": result.generation,
    }
