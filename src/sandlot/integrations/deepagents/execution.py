"""The backend's commands.

Output goes through this process into its file. There is no wrapper around the command, so that it is the
shell's own, ``cd`` and ``export`` last, and nothing is lost without a word where the file cannot be written.
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
from sandlot.integrations.deepagents.artifacts import real_path
from sandlot.integrations.deepagents.operation import Operation
from sandlot.integrations.foreground import run_foreground
from sandlot.integrations.model_text import for_model_error, plain, shell_note, shown, why_ended
from sandlot.integrations.toolbox.commands import ENV, exec_id_of, in_shell

KEPT_BYTES: Final = 10 * MIB  # of a command's output
PREVIEW_CHARACTERS: Final = 4000
TIMED_OUT: Final = 124  # as the command `timeout` has it, and other backends of the framework


@dataclass(frozen=True, slots=True)
class Call:
    """``exec_id`` names the call, so that a run which is resumed does not run the command twice."""

    command: str
    timeout: int | None
    shell: str | None
    exec_id: str | None = None

    async def run(self, session: AsyncSession, output_limit: int = KEPT_BYTES) -> Result:
        exec_id = self.exec_id or new_exec_id()
        options: ExecOptions = {
            "timeout_s": self.timeout or None,
            "shell": self.shell,
            "output_limit": output_limit,
            "env": ENV,
            "merge_output": True,
        }
        return await in_shell(
            session, exec_id, options, lambda options: run_foreground(session, self.command, **options)
        )


def execute(call: Call) -> Operation[ExecuteResponse]:
    """Its output as it is, for programs as well as for models."""

    async def work(session: AsyncSession) -> ExecuteResponse:
        result = await call.run(session)
        return _response(result, result.marked_output)

    return Operation(work, _failed)


def execute_with_offload(
    call: Call, capture_path: str, max_inline_bytes: int, max_capture_bytes: int | None
) -> Operation[ExecuteOffloadResult]:
    """For a model: how the command ended is told too, and output that is too long is kept in a file."""
    limit = min(max_capture_bytes or KEPT_BYTES, MAX_OUTPUT_LIMIT_BYTES)

    async def work(session: AsyncSession) -> ExecuteOffloadResult:
        result = await call.run(session, limit)
        notes = "".join(f"\n[{note}]" for note in (why_ended(result), shell_note(result)) if note)
        output = _within(result.raw.output, result.raw.output_omitted)
        if len(output) <= max_inline_bytes:
            response = _response(result, plain(result.marked_output) + notes)
            return ExecuteOffloadResult(offloaded=False, response=response)
        kept_at = real_path(capture_path)
        try:
            await session.files.write(kept_at, output)
        except SandlotError as error:
            head_and_tail = shown(result.raw.output, max_inline_bytes, omitted=result.raw.output_omitted)
            lost = f"\n[what is left out could not be kept in {kept_at}: {error.message}]"
            response = _response(result, head_and_tail + lost + notes, truncated=True)
            return ExecuteOffloadResult(offloaded=False, response=response)
        where = f"{kept_at} for commands"
        preview = shown(result.raw.output, PREVIEW_CHARACTERS, where, result.raw.output_omitted)
        return ExecuteOffloadResult(offloaded=True, response=_response(result, preview + notes))

    def failed(error: SandlotError) -> ExecuteOffloadResult:
        return ExecuteOffloadResult(offloaded=False, response=_failed(error))

    return Operation(work, failed)


def _within(output: bytes, omitted: Omitted | None) -> bytes:
    """With the line that says what is missing, and no longer than it was: the framework sets the bound."""
    if omitted is None:
        return output
    size = len(marker(omitted).encode()) + 2  # the count may get a digit more, and a comma with it
    if omitted.at + size > len(output):
        return output
    shorter = Omitted(omitted.at, omitted.bytes + size)
    return marked_bytes(output[: omitted.at] + output[omitted.at + size :], shorter)


def named(task: str | None, capture_path: str, command: str) -> str | None:
    """The id of one tool call's exec. A resumed step finds the command that it had begun, by its id."""
    return None if task is None else exec_id_of(f"{task}\0{capture_path}", command)


def _response(result: Result, output: str, *, truncated: bool = False) -> ExecuteResponse:
    return ExecuteResponse(
        output=output,
        exit_code=TIMED_OUT if result.timed_out else result.exit_code,
        truncated=truncated or result.truncated,
    )


def _failed(error: SandlotError) -> ExecuteResponse:
    """No exit code: there was no end of a command to have one."""
    return ExecuteResponse(output=for_model_error(error), exit_code=None)
