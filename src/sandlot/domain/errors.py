"""The one error tree. Errors are named by what the caller must do about them.

SandlotError
├── InvalidRequest            the request can never succeed as it is: change it
├── Unauthorized              no key, or not one that this server knows
├── NotFound                  the session, sandbox, exec or shell is not there
│   └── SessionEnded          it was there: deleted or expired, and the message says which
├── Conflict                  it exists already, or under the same id with other content
│   ├── IdempotencyMismatch   the idempotency key was used before, for another request
│   └── ThreadDiffers         the thread has a session with another environment, variables or limits
├── Busy                      a bound is reached (execs, streams, processes): wait, then retry
├── Unavailable               no sandbox can be had now (queue, capacity, server stopping): retry later
├── TooLarge                  a body, file or archive is over the bound that the message names
├── Unsupported               this agent, tier or provider cannot do it
├── FileProblem               the sandbox's file system said no; ``reason`` says how
├── SandboxLost               the sandbox is gone or out of control: nothing here will bring it back
│   └── SandboxQuarantined    its agent broke the protocol; it is cut off and must be destroyed
├── SandboxUnresponsive       the sandbox is there and does not answer: ask again later, or give it up
├── LinkInterrupted           the connection to the agent broke during the call; ask again by exec id
├── EngineProblem             the container engine refused, failed, or is not there
│   ├── EngineTimeout         the engine did not answer within the call's deadline
│   ├── ImageMissing          the image is not on this machine and could not be had
│   └── TierMissing           the asked wall (runc, runsc) is not installed; there is no weaker fallback
└── StorageProblem            what has to be written down cannot be; somebody has to look at the disk
    └── StorageFull           no room on it: free some, then retry

Every error carries ``code`` (stable), ``retryable`` and ``may_have_executed``; ``retry_after_s``
where the time is known, and ``details``: what a program may want to act on, JSON throughout.
A failed command is a result, never an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class SandlotError(Exception):
    code = "internal"
    retryable = False
    may_have_executed = False
    retry_after_s: float | None = None

    def __init__(
        self,
        message: str,
        *,
        retryable: bool | None = None,
        may_have_executed: bool | None = None,
        retry_after_s: float | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.details: dict[str, Any] = dict(details or {})
        if retry_after_s is not None:
            self.retry_after_s = retry_after_s
        if retryable is not None:
            self.retryable = retryable
        if may_have_executed is not None:
            self.may_have_executed = may_have_executed


class InvalidRequest(SandlotError):
    code = "invalid_request"


class Unauthorized(SandlotError):
    code = "unauthorized"


class NotFound(SandlotError):
    code = "not_found"


class SessionEnded(NotFound):
    code = "session_ended"


class Conflict(SandlotError):
    code = "conflict"


class IdempotencyMismatch(Conflict):
    code = "idempotency_mismatch"


class ThreadDiffers(Conflict):
    """``details["different"]`` names the options."""

    code = "thread_differs"


class Busy(SandlotError):
    code = "busy"
    retryable = True


# In ``details["reason"]`` of an ``Unavailable``: no server was there to connect to.
UNREACHABLE = "unreachable"


class Unavailable(SandlotError):
    code = "unavailable"
    retryable = True


class TooLarge(SandlotError):
    code = "too_large"


class Unsupported(SandlotError):
    code = "unsupported"


class FileProblem(SandlotError):
    """``reason`` is one of FILE_REASONS; ``path`` is the path as it was asked for."""

    code = "file_problem"

    def __init__(self, message: str, *, reason: str, path: str) -> None:
        super().__init__(message, details={"reason": reason, "path": path})
        self.reason = reason
        self.path = path


FILE_REASONS = frozenset(
    {
        "not_found",
        "exists",
        "permission_denied",
        "not_a_directory",
        "is_a_directory",
        "not_regular",
        "not_empty",
        "no_space",
        "too_large",
        "invalid_path",
    }
)


class SandboxLost(SandlotError):
    code = "sandbox_lost"
    may_have_executed = True


class SandboxQuarantined(SandboxLost):
    code = "sandbox_quarantined"


class SandboxUnresponsive(SandlotError):
    """It may be frozen, overloaded or wedged; it is not known to be lost, and may answer again."""

    code = "sandbox_unresponsive"
    retryable = True
    may_have_executed = True


class LinkInterrupted(SandlotError):
    code = "link_interrupted"
    retryable = True
    may_have_executed = True


class EngineProblem(SandlotError):
    code = "engine_problem"


class EngineTimeout(EngineProblem):
    code = "engine_timeout"
    retryable = True
    may_have_executed = True


class ImageMissing(EngineProblem):
    code = "image_missing"


class TierMissing(EngineProblem):
    code = "tier_missing"


class StorageProblem(SandlotError):
    code = "storage_problem"


class StorageFull(StorageProblem):
    code = "storage_full"
    retryable = True
