"""Names and values that callers give: environment variables of sessions and commands, and metadata."""

from __future__ import annotations

from collections.abc import Mapping

from sandlot.domain.errors import InvalidRequest


def check_env(env: Mapping[str, str]) -> None:
    check_texts("variable", env)
    for name, value in env.items():
        if not name or "=" in name:
            raise InvalidRequest("a variable's name is empty or contains '='")
        if "\0" in name or "\0" in value:
            raise InvalidRequest(f"the variable {name!r:.80} contains a NUL character")


def check_texts(what: str, given: Mapping[str, str]) -> None:
    """For callers from Python, where nothing else has looked at the types yet."""
    for name, value in given.items():
        if not isinstance(name, str):
            raise InvalidRequest(f"the name of a {what} is text, and {name!r:.80} is {type(name).__name__}")
        if not isinstance(value, str):
            raise InvalidRequest(
                f"the value of a {what} is text, and that of {name!r:.80} is {type(value).__name__}; "
                "write str(...) around it"
            )
