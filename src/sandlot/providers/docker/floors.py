"""The oldest engine versions without known ways out of a container, and a warning for each that is older."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

ENGINE_FLOOR = (29, 5, 1)
# runc keeps two lines: 1.2 is whole from 1.2.8 on, 1.3 from 1.3.3.
RUNC_FLOORS = ((1, 2, 8), (1, 3, 3))


def warnings(version: Mapping[str, Any]) -> Sequence[str]:
    """From the engine's answer to ``GET /version``."""
    found: list[str] = []
    engine = parse(str(version.get("Version", "")))
    if engine is None or engine < ENGINE_FLOOR:
        found.append(_older("Docker Engine", str(version.get("Version", "unknown")), (ENGINE_FLOOR,)))
    for component in version.get("Components") or ():
        if component.get("Name") == "runc":
            text = str(component.get("Version", ""))
            runc = parse(text)
            if runc is None or not _runc_is_whole(runc):
                found.append(_older("runc", text or "unknown", RUNC_FLOORS))
    return found


def parse(text: str) -> tuple[int, int, int] | None:
    """The leading three numbers; distributions append letters of their own."""
    match = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", text)
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None


def _runc_is_whole(runc: tuple[int, int, int]) -> bool:
    for floor in RUNC_FLOORS:
        if runc[:2] == floor[:2]:
            return runc >= floor
    return runc > RUNC_FLOORS[-1]


def _older(what: str, has: str, floors: Sequence[tuple[int, int, int]]) -> str:
    wanted = " or ".join(".".join(map(str, floor)) for floor in floors)
    return f"{what} {has} is older than {wanted} and has known ways out of a container: update it"
