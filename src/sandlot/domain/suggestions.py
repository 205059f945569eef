"""What somebody meant who wrote a name that is not known."""

from __future__ import annotations

from collections.abc import Iterable

# Low enough for "enviroment" and "pool_sise", high enough that two real names are not taken for each other.
SIMILAR = 0.7


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like this one, or None. Upper and lower case are the same here."""
    import difflib  # only when something is wrong already

    by_lower = {one.lower(): one for one in sorted(known, reverse=True)}
    found = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=SIMILAR)
    return by_lower[found[0]] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name; empty where no known one is near."""
    meant = nearest(name, known)
    return "" if meant is None else f"; did you mean {meant!r}?"
