"""Strangers' text, written so that it cannot steer what shows it: a terminal, a log."""

from __future__ import annotations


def harmless(text: str) -> str:
    """Without control characters, format characters and lone surrogates: they are escaped."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
