"""Cells as execs: what the agent runs for one, and how lists show it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from sandlot.domain.code.contexts import Language
from sandlot.domain.computer import ExecSummary
from sandlot.domain.errors import InvalidRequest
from sandlot.domain.execution import ExecRequest

# The kernel takes no argument of 128 KiB or more, and gVisor takes less in all than Linux does.
_ARGUMENT_BYTES: Final = 96 * 1024
_ARGUMENTS_BYTES: Final = 256 * 1024
_VARIABLES: Final = "SANDLOT_CELL_VARIABLES"  # agent/internal/cells reads it


def exec_of(request: ExecRequest, language: Language, program: str) -> tuple[ExecRequest, bytes | None]:
    """The exec that runs a cell with the agent's ``program``, and its input.

    The same cell is always the same exec.
    """
    cell = request.cell
    assert cell is not None, "the request is for a cell"
    env = dict(request.env)
    if any("," in name for name in env):
        raise InvalidRequest("The name of a cell's variable cannot have a comma.")
    if env:
        env[_VARIABLES] = ",".join(env)
    argv: tuple[str, ...] = (program, "cell", cell.context, language)
    code = cell.code.encode()
    if len(code) > _ARGUMENTS_BYTES or b"\0" in code:
        return replace(request, cell=None, argv=argv, env=env, stdin=True), code
    return replace(request, cell=None, argv=(*argv, *_pieces(code)), env=env), None


def _pieces(code: bytes) -> Iterator[str]:
    """The code as arguments, cut between characters."""
    start = 0
    while start == 0 or start < len(code):
        end = min(start + _ARGUMENT_BYTES, len(code))
        while end < len(code) and code[end] & 0xC0 == 0x80:
            end -= 1
        yield code[start:end].decode()
        start = max(end, 1)


def shown(summary: ExecSummary, program: str) -> ExecSummary:
    """An exec of a list. Of a cell it shows the context and the code."""
    prefix = f"{program} cell "
    if not summary.command.startswith(prefix):
        return summary
    context, _, rest = summary.command.removeprefix(prefix).partition(" ")
    return replace(summary, command=f"{context}: {rest.partition(' ')[2]}")
