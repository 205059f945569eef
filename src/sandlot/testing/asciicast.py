"""Reads an asciicast v2 as strictly as its format is written, for tests of recordings."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class CastEvent:
    at: float
    code: str
    data: str


@dataclass(frozen=True, slots=True)
class Asciicast:
    header: dict[str, Any]
    events: tuple[CastEvent, ...]

    @property
    def shown(self) -> str:
        """All that a player shows."""
        return "".join(event.data for event in self.events if event.code == "o")

    @property
    def markers(self) -> list[str]:
        return [event.data for event in self.events if event.code == "m"]


def parse_asciicast(data: bytes) -> Asciicast:
    """Raises ``AssertionError`` or ``ValueError`` for anything that the format does not allow."""
    assert data.endswith(b"\n"), "the last line is whole"
    first, *lines = data.decode("utf-8").removesuffix("\n").split("\n")
    header = json.loads(first)
    assert isinstance(header, dict)
    assert header["version"] == 2
    for name in ("width", "height"):
        assert type(header[name]) is int
        assert header[name] > 0
    assert type(header["timestamp"]) is int
    assert header.keys() <= {"version", "width", "height", "timestamp", "idle_time_limit", "title"}
    events = []
    last = 0.0
    for line in lines:
        at, code, text = json.loads(line)
        assert type(at) in (int, float)
        assert at >= last, "times never go back"
        assert code in ("o", "m", "r")
        assert type(text) is str
        assert text or code == "m", "no empty output"
        assert code != "r" or re.fullmatch(r"[1-9]\d*x[1-9]\d*", text)
        last = at
        events.append(CastEvent(at, code, text))
    return Asciicast(header, tuple(events))
