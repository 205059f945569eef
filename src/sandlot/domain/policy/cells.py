"""How a policy sees code for a context: as commands that would run it, because rules are about commands."""

from __future__ import annotations

import re
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
# What IPython hands to a shell: lines such as `!ls` and `files = !ls`, and whole cells such as `%%bash`.
_SHELL_LINE: Final = re.compile(
    r"^[^\S\n]*(?:[\w, \t]+=[^\S\n]*)?(?:!!?|%(?:sx|system)\s)(.+)$", re.MULTILINE
)
_SHELL_CELL: Final = re.compile(r"\A\s*%%(?:bash|sh|sx|system|!|script[^\S\n]+\S+)[^\n]*\n(.*)\Z", re.DOTALL)

_CommandOrArgv = tuple[str | None, tuple[str, ...] | None]


def commands_of(request: ExecRequest, language: Language | None = None) -> list[_CommandOrArgv]:
    """What a policy decides about: command lines, or programs with their arguments.

    A cell is judged as if the interpreter of its language were told to run the code, and so are the commands
    that IPython hands to a shell. ``language``: what the cell is written in.
    """
    cell = request.cell
    if cell is None:
        return [(request.command, request.argv)]
    assert language is not None, "a cell has a language"
    if language is Language.BASH:
        return [(cell.code, None)]
    commands: list[_CommandOrArgv] = [(None, (*_PROGRAMS[language], cell.code))]
    if language is Language.PYTHON:
        whole = _SHELL_CELL.match(cell.code)
        lines = [whole[1]] if whole else [match[1] for match in _SHELL_LINE.finditer(cell.code)]
        commands += [(line, None) for line in lines if line.strip()]
    return commands
