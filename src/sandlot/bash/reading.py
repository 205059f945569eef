"""Reads a command line, or a program with its arguments, as a list of everything that it runs.

Reading is a guard rail: it sees what the text says, and reports as unclear what the text does not say. It
does not look into files, and it knows no other language than bash.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from sandlot.bash.budget import Budget, OverBudget
from sandlot.bash.parsing import CONTROLS, SHOWN_CHARACTERS
from sandlot.bash.walk import Walk
from sandlot.domain.policy.commands import Assignment, Reading, Unclear, Word

# Have a meaning in ``Word.text``.
_MARKS: Final = re.compile(r"[\x00-\x05]")


def read_text(text: str) -> Reading:
    """Everything that bash would do with this text."""
    return _read(text, None)


def read_arguments(argv: Sequence[str]) -> Reading:
    """Everything that a program with these arguments would do. Nothing in them is replaced."""
    return _read(None, argv)


def read_request(command: str | None, argv: Sequence[str] | None, variables: Iterable[str] = ()) -> Reading:
    """Everything that a command line or a program would do. ``variables``: names that are set for it."""
    reading = read_text(command) if command is not None else read_arguments(argv or ())
    return replace(reading, steps=(*(Assignment(name) for name in variables), *reading.steps))


def _read(text: str | None, argv: Sequence[str] | None) -> Reading:
    budget = Budget()
    walk = Walk(budget, [])
    doubts: tuple[Unclear, ...] = ()
    try:
        if text is not None:
            parsed = budget.parse(text)
            doubts = parsed.doubts
            walk.visit(parsed.root)
        else:
            words = [Word(word, word) for word in argv or ()]
            doubts = tuple(
                Unclear((word.source[:SHOWN_CHARACTERS],), CONTROLS)
                for word in words
                if _MARKS.search(word.text)
            )
            walk.run_words(words)
    except OverBudget as error:
        shown = text if text is not None else " ".join(argv or ())
        doubts += (Unclear((shown[:SHOWN_CHARACTERS],), str(error)),)
    return Reading(tuple(walk.steps), (*doubts, *walk.unclear[: budget.MAX_DOUBTS]))
