"""Patterns of files to keep: what a caller may write, and where the search for them begins.

A pattern is a path below ``/workspace``. ``*``, ``?``, ``[…]`` and ``**`` match as in ``Files.walk``. A
folder's path means all files below it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sandlot.domain.errors import InvalidRequest

WORKSPACE: Final = "/workspace"
MAX_PATTERNS: Final = 100
MAX_PATTERN_BYTES: Final = 1024
EVERYTHING_BELOW: Final = "**"
_SPECIAL: Final = frozenset("*?[\\")


def check_patterns(patterns: Iterable[str]) -> tuple[str, ...]:
    """The patterns, relative to ``/workspace``, each once. Raises ``InvalidRequest``."""
    if isinstance(patterns, str):
        raise InvalidRequest(f"Pass a list of paths, such as [{patterns!r:.80}].")
    checked = tuple(dict.fromkeys(check_pattern(pattern) for pattern in patterns))
    if len(checked) > MAX_PATTERNS:
        raise InvalidRequest(f"At most {MAX_PATTERNS} paths can be kept at once.")
    return checked


def check_pattern(pattern: str) -> str:
    """The pattern, relative to ``/workspace`` and without ``.`` and empty parts."""
    if not pattern or "\0" in pattern:
        raise InvalidRequest("A path to keep must be text without zero bytes, such as 'out/*.png'.")
    try:
        size = len(pattern.encode())
    except UnicodeEncodeError as error:
        raise InvalidRequest("A path to keep is not valid Unicode text.") from error
    if size > MAX_PATTERN_BYTES:
        raise InvalidRequest(f"A path to keep must not exceed {MAX_PATTERN_BYTES} bytes.")
    inside = pattern
    if pattern.startswith("/"):
        if pattern != WORKSPACE and not pattern.startswith(WORKSPACE + "/"):
            raise InvalidRequest(f"{pattern!r:.80} is outside {WORKSPACE}. Copy it there, or leave it out.")
        inside = pattern[len(WORKSPACE) :]
    parts = [part for part in inside.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise InvalidRequest(f"{pattern!r:.80} contains '..'. Write the path relative to {WORKSPACE}.")
    return "/".join(parts) or EVERYTHING_BELOW


def split_pattern(pattern: str) -> tuple[tuple[str, ...], str | None]:
    """The pattern's leading folders, and the glob below them; None if the pattern names one path."""
    parts = pattern.split("/")
    plain = next((at for at, part in enumerate(parts) if _SPECIAL & set(part)), len(parts))
    return tuple(parts[:plain]), "/".join(parts[plain:]) or None


def path_inside(path: str) -> str | None:
    """An absolute path relative to ``/workspace``; None if it is not below it."""
    inside = path.removeprefix(WORKSPACE + "/")
    if inside == path or any(part in ("", ".", "..") for part in inside.split("/")):
        return None
    return inside
