"""Globs as Deep Agents means them, looked for with the globs that the sandbox knows.

The framework's own matcher decides. The sandbox is given a glob that finds at least as much, so that names
which cannot match need not be sent.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from deepagents.backends.utils import InvalidGlobPatternError, compile_grep_include_glob

from sandlot.domain.errors import InvalidRequest

PATTERN_CHARACTERS: Final = 1000  # what is done with one grows with the square of its length
_BRACES: Final = re.compile(r"\{[^{}/]*\}")
# Without end, and nobody keeps files there.
PSEUDO_FOLDERS: Final = frozenset({"proc", "sys", "dev"})


def matcher(pattern: str) -> Callable[[str], bool]:
    """For paths relative to where the search begins."""
    if len(pattern) > PATTERN_CHARACTERS:
        raise InvalidRequest(
            f"the glob has {len(pattern)} characters, and may have {PATTERN_CHARACTERS}; use a shorter one"
        )
    try:
        return compile_grep_include_glob(pattern)
    except InvalidGlobPatternError as error:
        raise InvalidRequest(str(error)) from None


def wider(pattern: str) -> str | None:
    """A glob of the sandbox for everything that the pattern can match, or None for everything there is."""
    glob = re.sub("/+", "/", pattern)
    while _BRACES.search(glob):
        glob = _BRACES.sub("*", glob)
    if "{" in glob or "}" in glob or glob.count("[") != glob.count("]"):
        return None
    return glob.lstrip("/") if "/" in glob else f"**/{glob}"
