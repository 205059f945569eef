"""Removes what programs write for terminals: colours, and lines that are drawn again."""

from __future__ import annotations

import re
from typing import Final

# Escape sequences control terminals; for a model they are noise. The last alternatives match a
# sequence that was cut off at the end of the text.
_ESCAPES: Final = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[ -/]+[0-~]|[0-~]|\[[0-?]*$|$)"
)
# Characters that overwrite, ring or erase. Tab and newline count as text.
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def strip_terminal_codes(text: str) -> str:
    """Remove terminal codes. Of a line that was redrawn, keep the final version."""
    text = _ESCAPES.sub("", text).replace("\r\n", "\n")
    if "\n" not in text:
        text = text.replace("\r", "\n")  # without newlines, a carriage return ends a line
    lines = text.split("\n")
    return "\n".join(_CONTROLS.sub("", line.rstrip("\r").rpartition("\r")[2]) for line in lines)
