"""Translates the engine's error answers into domain errors.

Clients read the domain errors. The engine's own messages go to the log.
"""

from __future__ import annotations

import structlog

from sandlot.domain.errors import (
    Conflict,
    EngineProblem,
    ImageMissing,
    NotFound,
    SandlotError,
    StorageFull,
    TierMissing,
)

log = structlog.get_logger("sandlot.engine")


def translate(call: str, status: int, message: str) -> SandlotError:
    """Returns the domain error for an engine's answer.

    Leaves out the engine's messages about its own failures: they name the host's paths, runtimes
    and kernels.
    """
    text = f"{call}: {message.strip()}"
    lower = message.lower()
    if "no space left on device" in lower or "disk quota exceeded" in lower:
        log.warning("Docker's disk is full", call=call, message=message.strip())
        return StorageFull(f"{call}: Docker's disk is full.")
    if "unknown or invalid runtime" in lower or "unknown runtime" in lower:
        return TierMissing(text)
    if status == 900:  # aiodocker's number for "could not connect"
        return EngineProblem(
            f"{text} (Is Docker running, and does this user have access to its socket?)", retryable=True
        )
    if status == 404:
        if "no such image" in lower or "manifest unknown" in lower or call.startswith("pull"):
            return ImageMissing(text)
        return NotFound(text)
    if status == 409:
        return Conflict(text)
    log.warning("Docker returned an error", call=call, status=status, message=message.strip())
    return EngineProblem(
        f"{call}: Docker returned status {status}. The server's log has the reason.",
        retryable=status >= 500,
    )
