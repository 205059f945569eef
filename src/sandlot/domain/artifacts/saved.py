"""Marks: say in object storage which artifacts are saved there. Pure.

A mark's name has the artifact's place in lists, its session, and a hash of its conversation. So a page of
artifacts is found by names alone, and only what is on the page is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

_NAME: Final = re.compile(r"((\d{13}\.\d{6})-(art_[0-9a-f]{32}))-(ses_[0-9a-f]{32})-([0-9a-f]{16}|none)")
NO_THREAD: Final = "none"


@dataclass(frozen=True, slots=True, order=True)
class SavedMark:
    """``place``: as in lists of artifacts. ``thread``: what stands for a conversation."""

    place: str
    artifact: str
    session: str
    thread: str = NO_THREAD

    @property
    def name(self) -> str:
        return f"{self.place}-{self.session}-{self.thread}"

    @property
    def created_at(self) -> float:
        return float(self.place.partition("-")[0])


def saved_marks(names: Iterable[str]) -> list[SavedMark]:
    """Oldest first. What is no mark is left out."""
    matches = [match for name in names if (match := _NAME.fullmatch(name)) is not None]
    return sorted(SavedMark(one[1], one[3], one[4], one[5]) for one in matches)
