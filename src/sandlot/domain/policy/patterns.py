"""Patterns of rules against words that may be known only in part.

``*`` and ``?`` stand for any text and any one character without "/", ``**`` for any text. A pattern that
starts with "/", also after "name=", is a path: words are compared with it after ``..``, ``.`` and doubled
slashes are resolved. ``~`` stands for itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import IntEnum
from functools import lru_cache
from typing import Final

from sandlot.domain.policy.commands import UNKNOWN, WILDCARD

MAX_PATTERN_CHARACTERS: Final = 300
# Longer words with unknown parts count as "may match": comparing costs their length times the pattern's.
MAX_COMPARED_CHARACTERS: Final = 4000

_PART: Final = re.compile(r"\*\*|\*|\?|[^*?]+")
_PATH: Final = re.compile(r"[\w.-]*=(?=/)|(?=/)")
# The first characters of words that may mean an absolute path, or lead to one by ``..``.
_MAY_BE_ABSOLUTE: Final = ("/", ".", UNKNOWN, WILDCARD)
_TO_RESOLVE: Final = re.compile(rf"/\.|//|/{UNKNOWN}/|\A\.|/\Z")
_ANY_TEXT: Final = "**"
_ANY_NAME: Final = "*"
_ANY_CHARACTER: Final = "?"


class Match(IntEnum):
    """Whether something matches. ``max`` is "or", ``min`` is "and"."""

    NO = 0
    MAYBE = 1
    YES = 2


class Pattern:
    __slots__ = ("_key", "_regex", "_tokens", "is_path", "source")

    def __init__(self, source: str, *, ignore_case: bool = False) -> None:
        self.source = source
        start = _PATH.match(source)
        self.is_path = start is not None
        self._key = start[0] if start else ""
        parts = _PART.findall(source.lower() if ignore_case else source)
        forms = {_ANY_TEXT: ".*", _ANY_NAME: "[^/]*", _ANY_CHARACTER: "[^/]"}
        flags = re.DOTALL | (re.IGNORECASE if ignore_case else 0)
        self._regex = re.compile("".join(forms.get(part) or re.escape(part) for part in parts), flags)
        self._tokens = [token for part in parts for token in ((part,) if part in forms else part)]

    def match(self, text: str, folders: Iterable[str] = ()) -> Match:
        """``folders``: where a relative path may start, beside the folder that nobody knows."""
        if not self.is_path:
            # Bash replaces only a ~ that is written as such.
            return Match.NO if self.source[0] == "~" != text[:1] else self._match(text)
        if not self._key and not folders and text[:1] not in _MAY_BE_ABSOLUTE and ".." not in text:
            return Match.NO
        if not text.startswith(self._key):
            # An unknown start may become the key and anything behind it.
            return Match.MAYBE if UNKNOWN in text[: len(self._key) + 1] else Match.NO
        return max(self._match(self._key + path) for path in paths_of(text[len(self._key) :], folders))

    def _match(self, text: str) -> Match:
        if UNKNOWN not in text:
            if self._regex.fullmatch(text):
                return Match.YES
            if WILDCARD not in text:
                return Match.NO
        elif self.source == _ANY_TEXT:
            return Match.YES
        if len(text) > MAX_COMPARED_CHARACTERS:
            return Match.MAYBE
        if self._regex.flags & re.IGNORECASE:
            text = text.lower()
        return Match.MAYBE if _can_meet(self._tokens, text) else Match.NO


def _can_meet(tokens: list[str], text: str) -> bool:
    """Whether some value of the text's unknown parts matches the pattern.

    Goes through the text with the set of places in the pattern that can be reached.
    """
    places = _closure({0}, tokens)
    for character in text:
        if character == UNKNOWN:
            places = set(range(min(places), len(tokens) + 1))
        elif character == WILDCARD:
            places = _reach_without_slash(places, tokens)
        else:
            places = _closure(
                {place for start in places for place in _step(start, character, tokens)}, tokens
            )
        if not places:
            return False
    return len(tokens) in places


def _step(place: int, character: str, tokens: list[str]) -> Iterable[int]:
    if place == len(tokens):
        return ()
    token = tokens[place]
    if token == _ANY_TEXT or (token == _ANY_NAME and character != "/"):
        return (place,)
    if token == character or (token == _ANY_CHARACTER and character != "/"):
        return (place + 1,)
    return ()


def _closure(places: set[int], tokens: list[str]) -> set[int]:
    """Add the places behind wildcards, which may stand for nothing."""
    for place in sorted(places):
        while place < len(tokens) and tokens[place] in (_ANY_TEXT, _ANY_NAME):
            place += 1
            places.add(place)
    return places


def _reach_without_slash(places: set[int], tokens: list[str]) -> set[int]:
    reached = set()
    for place in places:
        reached.add(place)
        while place < len(tokens) and tokens[place] != "/":
            place += 1
            reached.add(place)
    return reached


@lru_cache(maxsize=512)
def _resolve(path: str) -> str:
    """The path without ``.``, ``..`` and doubled slashes. Unknown where ``..`` leads out of it."""
    if not _TO_RESOLVE.search(path):
        return path
    parts: list[str] = []
    root = "/" if path.startswith("/") else ""
    for part in path.split("/"):
        if part in ("", "."):
            continue
        if part != "..":
            parts.append(part)
        elif parts and UNKNOWN not in parts[-1] and parts != ["~"]:
            parts.pop()
        elif parts or not root:
            root, parts = UNKNOWN, []  # above something unknown: anywhere
    # An unknown folder may be none: then its slash is gone, too.
    return (root + "/".join(parts)).replace(f"/{UNKNOWN}/", f"/{UNKNOWN}")


def paths_of(text: str, folders: Iterable[str]) -> list[str]:
    """The paths that a word may mean: as it is, and from each folder that the text changes into."""
    paths = [_resolve(text)]
    if not text.startswith(("/", "~", UNKNOWN)):
        paths += (_resolve(f"{folder}/{text}") for folder in folders)
    return paths
