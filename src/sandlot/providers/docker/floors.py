"""The oldest engine versions without known ways out of a container, and a warning for each that is older."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

ENGINE_FLOOR = (29, 5, 1)
# runc keeps two lines: 1.2 is whole from 1.2.8 on, 1.3 from 1.3.3.
RUNC_FLOORS = ((1, 2, 8), (1, 3, 3))
# gVisor names its weekly releases by day. CVE-2025-2713 (March 2025): a container's first process could read
# files that its user may not; every release from this day on was made after the fix was published.
RUNSC_FLOOR = 20250407
RUNSC_SECONDS = 5.0


def warnings(version: Mapping[str, Any], runsc: str | None = None) -> Sequence[str]:
    """From the engine's answer to ``GET /version``, and what its runsc says of itself, if there is one."""
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
    if runsc is not None:
        found += _of_runsc(runsc)
    return found


async def runsc_version(info: Mapping[str, Any]) -> str | None:
    """What the engine's runsc says of itself; the engine does not. Empty if it cannot be asked, None if none
    is registered (``info``: the engine's answer to ``GET /info``).
    """
    runtime = (info.get("Runtimes") or {}).get("runsc")
    if runtime is None:
        return None
    try:
        asking = await asyncio.create_subprocess_exec(
            runtime.get("path") or "runsc",
            "--version",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError:  # an engine in a virtual machine has its own
        return ""
    try:
        async with asyncio.timeout(RUNSC_SECONDS):
            answer, _ = await asking.communicate()
    except TimeoutError:
        return ""
    finally:
        if asking.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                asking.kill()
            await asking.wait()
    return answer.decode(errors="replace")


def parse(text: str) -> tuple[int, int, int] | None:
    """The leading three numbers; distributions append letters of their own."""
    match = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", text)
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None


def _runc_is_whole(runc: tuple[int, int, int]) -> bool:
    for floor in RUNC_FLOORS:
        if runc[:2] == floor[:2]:
            return runc >= floor
    return runc > RUNC_FLOORS[-1]


def _of_runsc(says: str) -> Sequence[str]:
    day = re.search(r"(?<!\d)20\d{6}(?!\d)", says)
    if day is None:  # it could not be asked, or was built without one: it may be sound
        return (f"the version of runsc could not be found out: see that it is {RUNSC_FLOOR} or newer",)
    if int(day[0]) < RUNSC_FLOOR:
        return (f"runsc {day[0]} is older than {RUNSC_FLOOR} and has known weaknesses: update gVisor",)
    return ()


def _older(what: str, has: str, floors: Sequence[tuple[int, int, int]]) -> str:
    wanted = " or ".join(".".join(map(str, floor)) for floor in floors)
    return f"{what} {has} is older than {wanted} and has known ways out of a container: update it"
