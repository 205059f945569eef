"""The engine's answers as errors of the domain. Clients read them; the engine's own words are for the log."""

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


def translate(what: str, status: int, message: str) -> SandlotError:
    """What an engine says of a failure of its own names paths, runtimes and kernels of the host."""
    text = f"{what}: {message.strip()}"
    lower = message.lower()
    if "no space left on device" in lower or "disk quota exceeded" in lower:
        log.warning("the engine's disk is full", call=what, message=message.strip())
        return StorageFull(f"{what}: no space left on device, on the engine's disk")
    if "unknown or invalid runtime" in lower or "unknown runtime" in lower:
        return TierMissing(text)
    if status == 900:  # aiodocker's number for "could not connect"
        return EngineProblem(
            f"{text} (is the engine running, and may this user use its socket?)", retryable=True
        )
    if status == 404:
        if "no such image" in lower or "manifest unknown" in lower or what.startswith("pull"):
            return ImageMissing(text)
        return NotFound(text)
    if status == 409:
        return Conflict(text)
    log.warning("the engine failed", call=what, status=status, message=message.strip())
    return EngineProblem(
        f"{what}: the engine refused with status {status}; the server's log has its reason",
        retryable=status >= 500,
    )
