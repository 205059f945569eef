"""Errors as responses: application/problem+json, for every kind of error.

An error from the service keeps its code and status. What HTTP itself refuses (a wrong method, a
foreign host, a slow body) is ``invalid_request`` under HTTP's own status, because the request has
to change. An unexpected error is ``internal`` and reveals nothing about this server's internals.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import fields, is_dataclass, replace
from http import HTTPStatus
from typing import Any, Final, get_args, get_type_hints

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from sandlot.api.responses.json import encode_json, replace_surrogates
from sandlot.domain.errors import FileProblem, InvalidRequest, NotFound, SandlotError, TooLarge, Unauthorized
from sandlot.domain.text.suggestions import did_you_mean
from sandlot.wire.error_codes import FILE_STATUS, STATUS, problem_of

PROBLEM_TYPE: Final = "application/problem+json"
MAX_REPORTED_PLACES: Final = 20
MAX_TEXT: Final = 200  # characters of client input that one field of a response repeats

# The error that the current request's response says. The edge sets a new list for each request and counts
# what is in it.
answered_errors: ContextVar[list[SandlotError] | None] = ContextVar("answered_errors", default=None)

# How Pydantic says so of a model, and of a dataclass.
_UNKNOWN_FIELD: Final = frozenset({"extra_forbidden", "unexpected_keyword_argument"})

_BY_STATUS: Final[dict[int, type[SandlotError]]] = {401: Unauthorized, 404: NotFound, 413: TooLarge}

# Errors that can occur before a route is reached, and in any route.
_EDGE_STATUSES: Final = (400, 401, 403, 408, 413, 422, 500)
# Errors that a service can add; a route that calls it may return any of these.
_SERVICE_STATUSES: Final = (404, 409, 410, 429, 501, 502, 503, 504, 507)


def _codes(status: int) -> list[str]:
    """The codes that a problem with this status can have."""
    codes = [kind.code for kind, own in STATUS.items() if own == status and kind is not FileProblem]
    if status in {400, *FILE_STATUS.values()}:
        codes.append(FileProblem.code)
    # What HTTP itself refuses.
    return codes if codes and status not in (400, 403) else [InvalidRequest.code, *codes]


def _problem_schema(status: int) -> dict[str, Any]:
    return {
        "description": f"{HTTPStatus(status).phrase}: {', '.join(f'`{code}`' for code in _codes(status))}",
        "content": {PROBLEM_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }


# For ``responses=`` of a router. description.py adds ``Problem`` itself to the OpenAPI description.
PROBLEMS: Final[dict[int | str, dict[str, Any]]] = {
    status: _problem_schema(status) for status in sorted((*_EDGE_STATUSES, *_SERVICE_STATUSES))
}
RANGE_PROBLEM: Final[dict[int | str, dict[str, Any]]] = {416: _problem_schema(416)}


def problem_response(
    error: SandlotError,
    request_id: str = "",
    *,
    status: int | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """The error as a response. ``status`` replaces the error's own, for what HTTP refuses."""
    note_answered(error)
    problem = problem_of(error, request_id)
    if status is not None:
        problem = replace(problem, status=status, title=HTTPStatus(status).phrase.lower())
    all_headers = dict(headers or {})
    if error.retry_after_s is not None:
        all_headers["Retry-After"] = str(max(0, math.ceil(error.retry_after_s)))
    if problem.status == 401:
        all_headers["WWW-Authenticate"] = "Bearer"
    return Response(encode_json(problem), problem.status, all_headers, media_type=PROBLEM_TYPE)


def note_answered(error: SandlotError) -> None:
    """Whoever turns an error into a response calls this, so that the error is counted."""
    errors = answered_errors.get()
    if errors is not None:
        errors.append(error)


def http_error(status: int, detail: str) -> SandlotError:
    """The error in our tree that represents an HTTP refusal."""
    return _BY_STATUS.get(status, InvalidRequest)(detail)


def check_is_post(scope: Scope) -> None:
    if scope["method"] != "POST":
        raise HTTPException(405, "Use POST; no other method is allowed here.", headers={"Allow": "POST"})


def internal_error() -> SandlotError:
    return SandlotError("Internal server error. Look up the request id in the server's log.")


def install(app: FastAPI) -> None:
    app.add_exception_handler(SandlotError, _handle_known_error)
    app.add_exception_handler(RequestValidationError, _handle_validation_error)
    app.add_exception_handler(HTTPException, _handle_known_error)


def error_response(error: SandlotError | HTTPException, request_id: str) -> Response:
    if isinstance(error, SandlotError):
        return problem_response(error, request_id)
    if isinstance(error.__cause__, SandlotError):  # FastAPI wraps an error in reading the body
        return problem_response(error.__cause__, request_id)
    return problem_response(
        http_error(error.status_code, error.detail),
        request_id,
        status=error.status_code,
        headers=error.headers,
    )


async def _handle_known_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, SandlotError | HTTPException)
    return error_response(error, request.state.request_id)


async def _handle_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    places = [
        {
            "place": replace_surrogates(".".join(str(part)[:80] for part in found["loc"]))[:MAX_TEXT],
            "problem": _problem_text(request, found),
        }
        for found in error.errors()[:MAX_REPORTED_PLACES]
    ]
    if isinstance(error.body, bytes):
        detail = "Send the body as JSON, with the header Content-Type: application/json."
    else:
        detail = "; ".join(f"{entry['place']}: {entry['problem']}" for entry in places[:3])
    return problem_response(InvalidRequest(detail, details={"places": places}), request.state.request_id)


def _problem_text(request: Request, found: Mapping[str, Any]) -> str:
    """Pydantic's message, in plainer words for an unknown field."""
    if found["type"] in _UNKNOWN_FIELD:
        *place, name = found["loc"]
        known = _fields_at(request, place)
        return replace_surrogates(f"Unknown field.{did_you_mean(str(name)[:80], known)}".removesuffix("."))
    return replace_surrogates(str(found["msg"]))[:MAX_TEXT]


def _fields_at(request: Request, place: Sequence[object]) -> list[str]:
    """The names that a place in the route's body knows; none if it is not a body of ours."""
    body = getattr(request.scope.get("route"), "body_field", None)
    kind: object = None if body is None else body.field_info.annotation
    for name in place[1:]:
        hints = get_type_hints(kind) if is_dataclass(kind) else {}
        kind = next((part for part in _parts(hints.get(str(name))) if is_dataclass(part)), None)
    return [known.name for known in fields(kind)] if is_dataclass(kind) else []


def _parts(hint: object) -> tuple[object, ...]:
    """The types of a union, or the type itself."""
    return get_args(hint) or (hint,)
