"""Errors as E2B's SDKs read them: JSON with ``code`` and ``message``, over REST and over Connect.

The SDKs make their exceptions from the status, or from the Connect code. ``Should-Retry`` tells them whether
the same request may be sent again by itself.
"""

from __future__ import annotations

import math
from typing import Any, Final

from starlette.responses import Response

from sandlot.api.edge.error_responses import note_answered
from sandlot.api.responses.json import encode_json, json_response, replace_surrogates
from sandlot.domain import errors
from sandlot.domain.errors import FileProblem, SandlotError
from sandlot.wire.error_codes import status_of

# Our statuses that E2B's API does not have. A malformed request is InvalidArgumentException there.
_STATUS: Final = {422: 400, 410: 404}
_CONNECT_STATUS: Final = {
    "invalid_argument": 400,
    "failed_precondition": 400,
    "unauthenticated": 401,
    "permission_denied": 403,
    "not_found": 404,
    "already_exists": 409,
    "resource_exhausted": 429,
    "internal": 500,
    "unimplemented": 501,
    "unavailable": 503,
    "deadline_exceeded": 504,
}
_FILE_CODE: Final = {
    "not_found": "not_found",
    "exists": "already_exists",
    "permission_denied": "permission_denied",
    "not_empty": "failed_precondition",
    "no_space": "resource_exhausted",
    "too_large": "resource_exhausted",
}
_CODE: Final[dict[type[SandlotError], str]] = {
    errors.InvalidRequest: "invalid_argument",
    errors.Unauthorized: "unauthenticated",
    errors.Forbidden: "permission_denied",
    errors.PolicyDenied: "permission_denied",
    errors.ApprovalRequired: "permission_denied",
    errors.NotFound: "not_found",
    errors.Conflict: "failed_precondition",
    errors.Busy: "resource_exhausted",
    errors.Unavailable: "unavailable",
    errors.TooLarge: "invalid_argument",
    errors.Unsupported: "unimplemented",
    errors.SandboxLost: "unavailable",
    errors.SandboxUnresponsive: "unavailable",
    errors.LinkInterrupted: "unavailable",
    errors.StorageFull: "resource_exhausted",
    SandlotError: "internal",
}


class SandboxGone(SandlotError):
    """A sandbox without processes and files to show. E2B's SDKs know it by the words "was not found"."""

    code = "sandbox_gone"

    def __init__(self, sandbox_id: str, why: str = "") -> None:
        super().__init__(f"The sandbox was not found{': ' if why else ''}{why}")
        self.sandbox_id = sandbox_id

    @property
    def body(self) -> dict[str, Any]:
        return {"sandboxId": self.sandbox_id, "message": self.message, "code": 502}


class PortClosed(SandlotError):
    """Nothing listens on a port of a sandbox."""

    code = "port_closed"

    def __init__(self, sandbox_id: str, port: int) -> None:
        super().__init__("The sandbox is running but port is not open")
        self.sandbox_id, self.port = sandbox_id, port

    @property
    def body(self) -> dict[str, Any]:
        return {"sandboxId": self.sandbox_id, "message": self.message, "port": self.port, "code": 502}


def error_response(error: SandlotError, request_id: str = "", *, status: int | None = None) -> Response:
    """The error over REST. ``status`` replaces the error's own, for what HTTP refuses."""
    note_answered(error)
    if isinstance(error, SandboxGone | PortClosed):
        return json_response(error.body, 502, {"Should-Retry": "false"})
    body = error_body(error, status)
    again = error.retryable and not error.may_have_executed
    headers = {"Should-Retry": "true" if again else "false"}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(max(0, math.ceil(error.retry_after_s)))
    return json_response(body, body["code"], headers)


def error_body(error: SandlotError, status: int | None = None) -> dict[str, Any]:
    code = status or status_of(error)
    return {"code": _STATUS.get(code, code), "message": replace_surrogates(error.message)}


def connect_code(error: SandlotError) -> str:
    if isinstance(error, FileProblem):
        return _FILE_CODE.get(error.reason, "invalid_argument")
    if isinstance(error, SandboxGone | PortClosed):
        return "unavailable"
    return next(_CODE[kind] for kind in type(error).__mro__ if kind in _CODE)


def connect_error(error: SandlotError) -> dict[str, str]:
    return {"code": connect_code(error), "message": replace_surrogates(error.message)}


def connect_error_response(error: SandlotError) -> Response:
    """The error of a unary call. A gateway in front of the sandbox answers for one that is gone."""
    if isinstance(error, SandboxGone | PortClosed):
        return error_response(error)
    note_answered(error)
    body = connect_error(error)
    return Response(encode_json(body), _CONNECT_STATUS[body["code"]], media_type="application/json")
