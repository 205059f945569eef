"""Suggests the known name that a caller probably meant by an unknown one."""

from __future__ import annotations

from collections.abc import Iterable

# Low enough to match "enviroment" and "pool_sise", high enough to keep two valid names apart.
MIN_SIMILARITY = 0.7


def closest_match(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most similar to ``name``, or None. Ignores case."""
    import difflib  # imported here because only errors need it

    by_lower = {known_name.lower(): known_name for known_name in sorted(known, reverse=True)}
    matches = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=MIN_SIMILARITY)
    return by_lower[matches[0]] if matches else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name; empty if no known name is similar."""
    match = closest_match(name, known)
    return "" if match is None else f" Did you mean {match!r}?"
