"""Which pictures a model gets to see: those that every model's API takes, few and small enough.

An invalid picture, or one that is too large, would stay in the conversation and make every later turn fail.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from sandlot.domain.code.result import Value
from sandlot.integrations.toolbox.answer import Picture

# The types that models can view, and how each begins.
SIGNATURES: Final = {
    "image/png": rb"\x89PNG\r\n\x1a\n",
    "image/jpeg": rb"\xff\xd8\xff",
    "image/gif": rb"GIF8[79]a",
    "image/webp": rb"RIFF....WEBP",
}
MAX_PICTURE_BYTES: Final = 3_500_000
MAX_PICTURES: Final = 5
MAX_TOTAL_BYTES: Final = 10_000_000


def is_viewable(media_type: str, size: int, beginning: bytes) -> bool:
    signature = SIGNATURES.get(media_type)
    if signature is None or size > MAX_PICTURE_BYTES:
        return False
    return re.match(signature, beginning, re.DOTALL) is not None


def viewable(values: Iterable[Value]) -> tuple[tuple[Picture, ...], int]:
    """The pictures among a cell's values, and how many others there were. Of each value one form counts."""
    chosen: list[Picture] = []
    left_out = total = 0
    for value in values:
        forms = value.pictures
        if not forms:
            continue
        found = [
            Picture(kind, content)
            for kind, content in forms.items()
            if is_viewable(kind, len(content), content[:64])
        ]
        fits = found and len(chosen) < MAX_PICTURES and total + len(found[0].content) <= MAX_TOTAL_BYTES
        if fits:
            chosen.append(found[0])
            total += len(found[0].content)
        else:
            left_out += 1
    return tuple(chosen), left_out
