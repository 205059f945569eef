"""Makes untrusted text safe to show in a terminal or a log, which control characters could
manipulate.
"""

from __future__ import annotations


def escape_unprintable(text: str) -> str:
    """Escape control characters, format characters and lone surrogates."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
