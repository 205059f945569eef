"""Deep Agents' globs, evaluated with the help of the sandbox's globs.

The framework's own matcher decides. The sandbox gets a glob that matches at least as much, so that
it does not send names that cannot match.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from deepagents.backends.utils import InvalidGlobPatternError, compile_grep_include_glob

from sandlot.domain.errors import InvalidRequest

MAX_PATTERN_CHARACTERS: Final = 1000  # the work grows with the square of the length
_BRACES: Final = re.compile(r"\{[^{}/]*\}")
# Endless, and they contain no real files.
PSEUDO_FOLDERS: Final = frozenset({"proc", "sys", "dev"})


def compile_matcher(pattern: str) -> Callable[[str], bool]:
    """A predicate for paths relative to the search's root."""
    if len(pattern) > MAX_PATTERN_CHARACTERS:
        raise InvalidRequest(
            f"The glob has {len(pattern)} characters; the maximum is {MAX_PATTERN_CHARACTERS}. Use a "
            "shorter one."
        )
    try:
        return compile_grep_include_glob(pattern)
    except InvalidGlobPatternError as error:
        raise InvalidRequest(str(error)) from None


def superset_glob(pattern: str) -> str | None:
    """A sandbox glob that matches at least what the pattern matches; None means all files."""
    glob = re.sub("/+", "/", pattern)
    while _BRACES.search(glob):
        glob = _BRACES.sub("*", glob)
    if "{" in glob or "}" in glob or glob.count("[") != glob.count("]"):
        return None
    return glob.lstrip("/") if "/" in glob else f"**/{glob}"
