"""How a policy sees code for a context: as a command, because rules are about commands."""

from __future__ import annotations

from typing import Final

from sandlot.domain.code.contexts import Language
from sandlot.domain.execution import ExecRequest

# The program that a rule names to allow code, to ask about it or to deny it.
PROGRAM: Final = "code"


def as_command(request: ExecRequest) -> tuple[str | None, tuple[str, ...] | None]:
    """The command line and the arguments that a policy reads, one of which is None.

    Nobody can say what code in Python does from its text. So a policy decides whether a caller may run any,
    in which context. The default context of bash runs a command line like all others.
    """
    cell = request.cell
    if cell is None:
        return request.command, request.argv
    return (cell.code, None) if cell.context == Language.BASH else (None, (PROGRAM, cell.context))
