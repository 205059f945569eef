"""Errors on the wire: a closed table between codes, error classes and HTTP statuses.

No class is imported by a name that came over the wire.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from sandlot.domain import errors
from sandlot.domain.errors import FILE_REASONS, FileProblem, SandlotError

# HTTP status of each error class. The codes are attributes of the classes.
STATUS: Final[dict[type[SandlotError], int]] = {
    errors.InvalidRequest: 422,
    errors.Unauthorized: 401,
    errors.Forbidden: 403,
    errors.PolicyDenied: 403,
    errors.ApprovalRequired: 403,
    errors.NotFound: 404,
    errors.SessionEnded: 404,
    errors.Conflict: 409,
    errors.IdempotencyMismatch: 422,
    errors.ThreadDiffers: 409,
    errors.Busy: 429,
    errors.Unavailable: 503,
    errors.TooLarge: 413,
    errors.Unsupported: 501,
    errors.FileProblem: 400,
    errors.SandboxLost: 410,
    errors.SandboxQuarantined: 410,
    errors.SandboxUnresponsive: 503,
    errors.LinkInterrupted: 503,
    errors.EngineProblem: 502,
    errors.EngineTimeout: 504,
    errors.ImageMissing: 502,
    errors.TierMissing: 502,
    errors.StorageProblem: 507,
    errors.StorageFull: 507,
    errors.SandlotError: 500,
}

FILE_STATUS: Final = {
    "not_found": 404,
    "exists": 409,
    "permission_denied": 403,
    "no_space": 507,
    "too_large": 413,
}

_BY_CODE: Final = {error.code: error for error in STATUS}


@dataclass(frozen=True, slots=True)
class Problem:
    """An error, as ``application/problem+json`` (RFC 9457).

    title: the code, in words.
    status: the HTTP status.
    detail: what happened and what to do, for people.
    code: which error it is.
    retryable: whether the same request may succeed later, unchanged.
    may_have_executed: whether the request may have had an effect, such as a command that has run.
    type: always ``about:blank``.
    request_id: finds the request in the server's log.
    retry_after_s: seconds to wait before a retry, if known.
    details: what a program can act on.
    """

    title: str
    status: int
    detail: str
    code: str
    retryable: bool
    may_have_executed: bool
    type: str = "about:blank"
    request_id: str = ""
    retry_after_s: float | None = None
    details: dict[str, Any] = field(default_factory=dict)


def status_of(error: SandlotError) -> int:
    if isinstance(error, FileProblem):
        return FILE_STATUS.get(error.reason, 400)
    return next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)


def problem_of(error: SandlotError, request_id: str = "") -> Problem:
    return Problem(
        title=error.code.replace("_", " "),
        status=status_of(error),
        detail=error.message,
        code=error.code,
        retryable=error.retryable,
        may_have_executed=error.may_have_executed,
        request_id=request_id,
        retry_after_s=error.retry_after_s,
        details=error.details,
    )


def error_of(problem: Problem) -> SandlotError:
    """The error that a problem describes.

    An unknown code, as from a newer server, gives a plain ``SandlotError`` with its three fields
    intact.
    """
    details = {**problem.details, "request_id": problem.request_id} if problem.request_id else problem.details
    if problem.code == FileProblem.code:
        reason = details.get("reason")
        error: SandlotError = FileProblem(
            problem.detail,
            reason=reason if isinstance(reason, str) and reason in FILE_REASONS else "invalid_path",
            path=str(details.get("path", "")),
        )
        error.details.update(details)
        error.retryable, error.may_have_executed = problem.retryable, problem.may_have_executed
        error.retry_after_s = problem.retry_after_s
        return error
    error = _BY_CODE.get(problem.code, SandlotError)(
        problem.detail,
        retryable=problem.retryable,
        may_have_executed=problem.may_have_executed,
        retry_after_s=problem.retry_after_s,
        details=details,
    )
    if type(error) is SandlotError:
        error.code = problem.code
    return error
