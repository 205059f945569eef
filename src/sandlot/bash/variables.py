"""Builtins that give variables a value, or read a variable's name in quotes once more.

Bash replaces substitutions in a subscript when it uses the variable. So ``read 'a[$(date)]'`` runs ``date``,
although the text is in quotes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from sandlot.bash.options import options, skip_options
from sandlot.domain.policy.commands import UNKNOWN, Word

HIDDEN_IN_QUOTES: Final = "has a substitution in quotes that bash reads once more"

DECLARING: Final = frozenset({"declare", "export", "local", "readonly", "typeset"})
_HIDDEN: Final = re.compile(r"[\[(].*(?:`|\$[({])", re.DOTALL)
_READ: Final = options(values="-a -d -i -n -N -p -t -u", flags="-e -E -r -s")
_MAPFILE: Final = options(values="-d -n -O -s -u -C -c", flags="-t")


def is_read_twice(words: Sequence[Word]) -> bool:
    return any(_HIDDEN.search(word.text) for word in words)


def declared(words: Sequence[Word]) -> tuple[list[str], bool]:
    """The variables that ``declare`` sets with these arguments, and whether it computes their values."""
    names: list[str] = []
    letters = ""
    for word in words:
        text = word.text
        if text.startswith(("-", "+")):
            letters += text[1:]
            continue
        name, equals, value = text.partition("=")
        if equals or UNKNOWN in text:
            names.append(variable(name))
        if "n" in letters and equals:
            names.append(variable(value))  # the name stands for this variable from now on
    return names, "i" in letters or "n" in letters


def assigned(builtin: str, arguments: Sequence[Word]) -> list[str]:
    """The variables that another builtin sets: ``read``, ``printf -v``, ``mapfile``, ``getopts``."""
    if builtin == "read":
        rest, found, _ = skip_options(arguments, _READ, builtin)
        return [variable(text) for text in (*(word.text for word in rest), found.get("-a", "")) if text]
    if builtin == "printf":
        return [variable(text) for text in _value_of("-v", arguments)]
    if builtin == "getopts":
        return [variable(word.text) for word in arguments[1:2]]
    rest, _, _ = skip_options(arguments, _MAPFILE, builtin)
    return [variable(word.text) for word in rest]


def variable(text: str) -> str:
    """The variable's name, without its subscript."""
    return text.partition("[")[0].removesuffix("+")


def _value_of(option: str, arguments: Sequence[Word]) -> list[str]:
    """The value of an option that comes first, in the same word or in the next one."""
    if not arguments or not arguments[0].text.startswith(option):
        return []
    return [arguments[0].text[len(option) :] or (arguments[1].text if len(arguments) > 1 else "")]
