"""Keeps secrets out of the history: masks their values in commands and paths, and shortens long ones. Pure.

Only exact values are found. A secret that a command encodes, splits or reads from a file is not recognised.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Sequence
from itertools import chain, islice
from typing import Final

from sandlot.domain.callers.keys import KEY_IN_TEXT

MASK: Final = "***"
# Shorter values, such as "1" or "main", are no secrets, and would turn commands into riddles.
MIN_SECRET_CHARS: Final = 5
# How much of a command or path is kept.
MAX_CHARS: Final = 4096
CUT: Final = "…"
# What bounds the work for one text, because callers choose both the secrets and the text: how many secrets
# are looked for, by how many of their first characters, and how often each.
MAX_SECRETS: Final = 256
LOOKED_FOR_CHARS: Final = 256
MAX_PLACES: Final = 64


def secrets_in(*values: Iterable[str]) -> list[str]:
    """The values that are masked: at most one more than ``MAX_SECRETS``."""
    long = (value for value in chain(*values) if len(value) >= MIN_SECRET_CHARS)
    return list(islice(long, MAX_SECRETS + 1))


def masked(text: str, secrets: Collection[str], max_chars: int = MAX_CHARS) -> str:
    """The text with each secret replaced by ``***``, and cut after ``max_chars`` characters.

    A secret at the cut is replaced as a whole, so that no part of it is kept. With more secrets than can be
    looked for, nothing of the text is kept.
    """
    if len(secrets) > MAX_SECRETS:
        return MASK
    seen = text[: max_chars + LOOKED_FOR_CHARS]
    spans = [span for secret in secrets for span in places(seen, secret)]
    spans += [match.span() for match in KEY_IN_TEXT.finditer(seen)]
    kept, at = [], 0
    for start, end in sorted(spans):
        if start >= max_chars:
            break
        if start >= at:
            kept += [seen[at:start], MASK]
        at = max(at, end)
    kept.append(seen[at:max_chars])
    if len(text) > max(at, max_chars):
        kept.append(CUT)
    # A command may carry bytes that are no text. They cannot be stored as JSON.
    return "".join(kept).encode("utf-8", "replace").decode()


def masked_words(words: Sequence[str], secrets: Collection[str], max_chars: int = MAX_CHARS) -> str:
    """The same for a program and its arguments, as a shell would take them.

    Each word is masked before it is quoted, because quoting changes what it contains.
    """
    quoted, size = [], 0
    for word in words:
        if size > max_chars:
            break
        quoted.append(shlex.quote(masked(word, secrets, max_chars)))
        size += len(quoted[-1]) + 1
    joined = " ".join(quoted)
    return joined if len(joined) <= max_chars else joined[:max_chars] + CUT


def places(text: str, secret: str) -> Iterable[tuple[int, int]]:
    """Where the secret stands. Places may overlap: "aaaaa" stands twice in "aaaaaa"."""
    beginning = secret[:LOOKED_FOR_CHARS]
    at = text.find(beginning)
    for _ in range(MAX_PLACES):
        if at < 0:
            return
        yield at, at + len(secret)
        at = text.find(beginning, at + 1)
    if at >= 0:
        yield at, len(text)  # too often to look further: the rest is masked
