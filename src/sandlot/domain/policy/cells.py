"""How a policy sees code for a context: as the command that would run it. Rules are about commands."""

from __future__ import annotations

from typing import Final

from sandlot.domain.code.contexts import Language
from sandlot.domain.execution import ExecRequest

# How the interpreter of a language is told to run code. A rule for the program is one for such cells.
_PROGRAMS: Final = {
    Language.PYTHON: ("python3", "-c"),
    Language.JAVASCRIPT: ("node", "-e"),
    Language.TYPESCRIPT: ("node", "-e"),
    Language.R: ("Rscript", "-e"),
}


def as_command(
    request: ExecRequest, language: Language | None = None
) -> tuple[str | None, tuple[str, ...] | None]:
    """The command line and the arguments that a policy reads, one of which is None.

    ``language``: what a cell is written in.
    """
    cell = request.cell
    if cell is None:
        return request.command, request.argv
    assert language is not None, "a cell has a language"
    program = _PROGRAMS.get(language)
    # Bash runs the code as any other command line.
    return (cell.code, None) if program is None else (None, (*program, cell.code))
