"""Checks for names and values from callers: environment variables of sessions and commands,
metadata.
"""

from __future__ import annotations

from collections.abc import Mapping

from sandlot.domain.errors import InvalidRequest


def check_env(env: Mapping[str, str]) -> None:
    check_strings("variable", env)
    for name, value in env.items():
        if not name or "=" in name:
            raise InvalidRequest("A variable's name is empty or contains '='.")
        if "\0" in name or "\0" in value:
            raise InvalidRequest(f"Variable {name!r:.80} contains a NUL character.")


def check_strings(kind: str, entries: Mapping[str, str]) -> None:
    """Check that names and values are strings.

    Python callers need this: nothing else checks their types.
    """
    for name, value in entries.items():
        if not isinstance(name, str):
            raise InvalidRequest(
                f"The name of a {kind} must be a string, not {type(name).__name__}: {name!r:.80}."
            )
        if not isinstance(value, str):
            raise InvalidRequest(
                f"The value of {kind} {name!r:.80} must be a string, not {type(value).__name__}. Use str()."
            )
