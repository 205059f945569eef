"""The backend's commands.

This process receives a command's output and writes it to the capture file. No wrapper surrounds the
command, so it runs directly in the shell, and ``cd`` and ``export`` persist. If the file cannot be
written, the answer says so instead of losing output silently.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from deepagents.backends.protocol import ExecuteOffloadResult, ExecuteResponse

from sandlot.client.async_session import AsyncSession
from sandlot.client.options import ExecOptions
from sandlot.client.result import Result, marked_bytes, marker
from sandlot.domain.errors import SandlotError
from sandlot.domain.execution import MAX_OUTPUT_LIMIT_BYTES, MIB
from sandlot.domain.ids import new_exec_id
from sandlot.domain.kept_output import Omitted
from sandlot.domain.text.terminal_codes import strip_terminal_codes
from sandlot.integrations.deepagents.artifacts import sandbox_path
from sandlot.integrations.deepagents.operation import Operation
from sandlot.integrations.foreground import run_foreground
from sandlot.integrations.model_text import (
    describe_early_end,
    format_error,
    format_output,
    shell_note,
)
from sandlot.integrations.toolbox.commands import ENV, exec_id_for_call, run_in_shell

MAX_OUTPUT_BYTES: Final = 10 * MIB  # per command
PREVIEW_CHARACTERS: Final = 4000
TIMEOUT_EXIT_CODE: Final = 124  # as in the `timeout` program and in the framework's other backends


@dataclass(frozen=True, slots=True)
class CommandCall:
    """One command of a tool call.

    ``exec_id`` identifies the call, so that a resumed run does not run the command twice.
    """

    command: str
    timeout: int | None
    shell: str | None
    exec_id: str | None = None

    async def run(self, session: AsyncSession, output_limit: int = MAX_OUTPUT_BYTES) -> Result:
        exec_id = self.exec_id or new_exec_id()
        options: ExecOptions = {
            "timeout_s": self.timeout or None,
            "shell": self.shell,
            "output_limit": output_limit,
            "env": ENV,
            "merge_output": True,
        }
        return await run_in_shell(
            session, exec_id, options, lambda options: run_foreground(session, self.command, **options)
        )


def execute(call: CommandCall) -> Operation[ExecuteResponse]:
    """Run a command and return its output unchanged, for programs and for models."""

    async def work(session: AsyncSession) -> ExecuteResponse:
        result = await call.run(session)
        return _response(result, result.marked_output)

    return Operation(work, _error_response)


def execute_with_offload(
    call: CommandCall, capture_path: str, max_inline_bytes: int, max_capture_bytes: int | None
) -> Operation[ExecuteOffloadResult]:
    """Run a command for a model: report how it ended, and save long output to a file."""
    limit = min(max_capture_bytes or MAX_OUTPUT_BYTES, MAX_OUTPUT_LIMIT_BYTES)

    async def work(session: AsyncSession) -> ExecuteOffloadResult:
        result = await call.run(session, limit)
        notes = "".join(f"\n[{note}]" for note in (describe_early_end(result), shell_note(result)) if note)
        output = _fit_marker(result.raw.output, result.raw.output_omitted)
        if len(output) <= max_inline_bytes:
            response = _response(result, strip_terminal_codes(result.marked_output) + notes)
            return ExecuteOffloadResult(offloaded=False, response=response)
        kept_at = sandbox_path(capture_path)
        try:
            await session.files.write(kept_at, output)
        except SandlotError as error:
            head_and_tail = format_output(
                result.raw.output, max_inline_bytes, omitted=result.raw.output_omitted
            )
            not_saved = f"\n[cannot save the full output to {kept_at}: {error.message}]"
            response = _response(result, head_and_tail + not_saved + notes, truncated=True)
            return ExecuteOffloadResult(offloaded=False, response=response)
        where = f"{kept_at} for commands"
        preview = format_output(result.raw.output, PREVIEW_CHARACTERS, where, result.raw.output_omitted)
        return ExecuteOffloadResult(offloaded=True, response=_response(result, preview + notes))

    def failed(error: SandlotError) -> ExecuteOffloadResult:
        return ExecuteOffloadResult(offloaded=False, response=_error_response(error))

    return Operation(work, failed)


def _fit_marker(output: bytes, omitted: Omitted | None) -> bytes:
    """Insert the marker line for omitted output without exceeding the original size.

    The framework sets that size limit.
    """
    if omitted is None:
        return output
    size = len(marker(omitted).encode()) + 2  # the count may gain a digit and a comma
    if omitted.at + size > len(output):
        return output
    shorter = Omitted(omitted.at, omitted.bytes + size)
    return marked_bytes(output[: omitted.at] + output[omitted.at + size :], shorter)


def exec_id_for(task: str | None, capture_path: str, command: str) -> str | None:
    """The exec id of a tool call. With it a resumed step finds the command that it had started."""
    return None if task is None else exec_id_for_call(f"{task}\0{capture_path}", command)


def _response(result: Result, output: str, *, truncated: bool = False) -> ExecuteResponse:
    return ExecuteResponse(
        output=output,
        exit_code=TIMEOUT_EXIT_CODE if result.timed_out else result.exit_code,
        truncated=truncated or result.truncated,
    )


def _error_response(error: SandlotError) -> ExecuteResponse:
    """No exit code: the command has not ended."""
    return ExecuteResponse(output=format_error(error), exit_code=None)
