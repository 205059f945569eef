"""Brace expansion: ``{a,b}c`` is ``ac bc``. Braces that are quoted are ordinary characters by then."""

from __future__ import annotations

import itertools
import re
from typing import Final

from sandlot.domain.policy.commands import WILDCARD

# Stand for characters that are not quoted, until it is known whether they have a meaning.
BRACKET: Final = "\2"
OPEN: Final = "\3"
COMMA: Final = "\4"
CLOSE: Final = "\5"
MARKS: Final = WILDCARD + BRACKET + OPEN + COMMA + CLOSE

MAX_WORDS: Final = 64  # that one word may become; beyond, nobody counts
_SEQUENCE: Final = re.compile(r"(-?\d{1,6})\.\.(-?\d{1,6})(?:\.\.-?\d{1,6})?|([a-zA-Z])\.\.([a-zA-Z])")


def expand_braces(text: str) -> list[str] | None:
    """The words that a word with braces becomes, or None if there are too many."""
    done: list[str] = []
    waiting = [text]
    while waiting:
        word = waiting.pop()
        alternatives = _first_braces(word)
        if alternatives is None:
            done.append(_plain(word))
        else:
            waiting += reversed(alternatives)
        if len(done) + len(waiting) > MAX_WORDS:
            return None
    return [word for word in done if word]


def _first_braces(word: str) -> list[str] | None:
    """The words after the first braces that mean something are replaced, or None if there are none."""
    start = word.find(OPEN)
    while start >= 0:
        end, commas = _end(word, start)
        if end is not None:
            before, after = word[:start], word[end + 1 :]
            choices = _choices(word, start, end, commas)
            if choices is not None:
                return [before + choice + after for choice in choices]
        start = word.find(OPEN, start + 1)
    return None


def _end(word: str, start: int) -> tuple[int | None, list[int]]:
    depth, commas = 0, []
    for place in range(start, len(word)):
        character = word[place]
        if character == OPEN:
            depth += 1
        elif character == COMMA and depth == 1:
            commas.append(place)
        elif character == CLOSE:
            depth -= 1
            if depth == 0:
                return place, commas
    return None, commas


def _choices(word: str, start: int, end: int, commas: list[int]) -> list[str] | None:
    if commas:
        edges = [start, *commas, end]
        return [word[left + 1 : right] for left, right in itertools.pairwise(edges)]
    found = _SEQUENCE.fullmatch(word, start + 1, end)
    if found is None:
        return None
    first, last = (int(found[1]), int(found[2])) if found[1] else (ord(found[3]), ord(found[4]))
    step = 1 if first <= last else -1
    if abs(last - first) >= MAX_WORDS:
        return [""] * (MAX_WORDS + 1)
    numbers = range(first, last + step, step)
    return [str(number) if found[1] else chr(number) for number in numbers]


def _plain(word: str) -> str:
    return word.replace(OPEN, "{").replace(COMMA, ",").replace(CLOSE, "}")
