"""What the engine must have: the tier's runtime, and versions without known container escapes."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from sandlot.domain.environment import Tier
from sandlot.domain.errors import TierMissing
from sandlot.providers.docker.engine import Engine
from sandlot.providers.docker.spec import RUNTIMES

# The oldest versions without known container escapes.
ENGINE_FLOOR = (29, 5, 1)
# runc maintains two release lines. The fixes are in 1.2.8 and later, and in 1.3.3 and later.
RUNC_FLOORS = ((1, 2, 8), (1, 3, 3))
# gVisor names its weekly releases by date. CVE-2025-2713 (March 2025): a container's first process
# could read files that its user may not. All releases from this date on came after the fix.
RUNSC_FLOOR = 20250407
RUNSC_SECONDS = 5.0


def warnings(version: Mapping[str, Any], runsc: str | None = None) -> Sequence[str]:
    """Returns warnings about old versions.

    ``version`` is the engine's answer to ``GET /version``.
    ``runsc`` is the output of ``runsc --version``, or None if the engine has no runsc.
    """
    messages: list[str] = []
    engine = parse(str(version.get("Version", "")))
    if engine is None or engine < ENGINE_FLOOR:
        messages.append(_outdated("Docker Engine", str(version.get("Version", "unknown")), (ENGINE_FLOOR,)))
    for component in version.get("Components") or ():
        if component.get("Name") == "runc":
            text = str(component.get("Version", ""))
            runc = parse(text)
            if runc is None or not _runc_is_fixed(runc):
                messages.append(_outdated("runc", text or "unknown", RUNC_FLOORS))
    if runsc is not None:
        messages += _runsc_warnings(runsc)
    return messages


async def runsc_version(info: Mapping[str, Any]) -> str | None:
    """Returns the output of ``runsc --version``, because the engine does not report that version.

    ``info`` is the engine's answer to ``GET /info``. Returns an empty string if runsc cannot be
    run, and None if the engine has no runsc.
    """
    runtime = (info.get("Runtimes") or {}).get("runsc")
    if runtime is None:
        return None
    try:
        process = await asyncio.create_subprocess_exec(
            runtime.get("path") or "runsc",
            "--version",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError:  # an engine in a virtual machine has its runsc there
        return ""
    try:
        async with asyncio.timeout(RUNSC_SECONDS):
            output, _ = await process.communicate()
    except TimeoutError:
        return ""
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    return output.decode(errors="replace")


def parse(text: str) -> tuple[int, int, int] | None:
    """Returns the leading three numbers. Distributions append letters of their own."""
    match = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", text)
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None


def _runc_is_fixed(runc: tuple[int, int, int]) -> bool:
    for floor in RUNC_FLOORS:
        if runc[:2] == floor[:2]:
            return runc >= floor
    return runc > RUNC_FLOORS[-1]


def _runsc_warnings(output: str) -> Sequence[str]:
    day = re.search(r"(?<!\d)20\d{6}(?!\d)", output)
    if day is None:  # runsc could not be run, or was built without a date: it may be new enough
        return (f"cannot determine the version of runsc; check that it is {RUNSC_FLOOR} or newer",)
    if int(day[0]) < RUNSC_FLOOR:
        return (f"runsc {day[0]} is older than {RUNSC_FLOOR} and has known vulnerabilities; update gVisor",)
    return ()


def _outdated(name: str, version: str, floors: Sequence[tuple[int, int, int]]) -> str:
    wanted = " or ".join(".".join(map(str, floor)) for floor in floors)
    return f"{name} {version} is older than {wanted} and has known container escapes; update it"


async def check_tier(engine: Engine, tier: Tier) -> None:
    runtime = RUNTIMES.get(tier)
    if runtime is None:
        raise TierMissing(f"Docker has no tier {tier}. Its tiers are {', '.join(RUNTIMES)}.")
    if runtime not in await engine.runtimes():
        raise TierMissing(
            f'Docker has no runtime {runtime}. Install it, add it under "runtimes" in '
            "/etc/docker/daemon.json, and restart Docker. Sandlot never falls back to a weaker tier."
        )
