"""Errors as answers: application/problem+json, whatever went wrong and wherever.

What the service raises keeps its code and status. What HTTP itself refuses (a wrong method, a foreign host, a
slow body) is ``invalid_request`` under HTTP's own status: the request has to change. What nobody expected is
``internal``, and says nothing of how this server is built.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from sandlot.api.answers import encoded, readable
from sandlot.domain.errors import InvalidRequest, NotFound, SandlotError, TooLarge, Unauthorized
from sandlot.wire.error_codes import problem_of

PROBLEM_TYPE: Final = "application/problem+json"
MAX_NAMED_PLACES: Final = 20
MAX_TEXT: Final = 200  # characters of what a client sent, in one place of an answer

_BY_STATUS: Final[dict[int, type[SandlotError]]] = {401: Unauthorized, 404: NotFound, 413: TooLarge}

# What can go wrong before a route is reached, and in it.
_ALWAYS: Final = (400, 401, 403, 408, 413, 422, 500)
# What a service may say on top; a route that calls it may answer with any of these.
_SERVICE: Final = (404, 409, 410, 429, 501, 502, 503, 504, 507)


def _documented(status: int) -> dict[str, Any]:
    return {
        "description": HTTPStatus(status).phrase,
        "content": {PROBLEM_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }


# For ``responses=`` of a router. ``Problem`` itself is added to the description by openapi.py.
EDGE_PROBLEMS: Final[dict[int | str, dict[str, Any]]] = {status: _documented(status) for status in _ALWAYS}
PROBLEMS: Final[dict[int | str, dict[str, Any]]] = {
    status: _documented(status) for status in sorted((*_ALWAYS, *_SERVICE))
}
RANGE_PROBLEM: Final[dict[int | str, dict[str, Any]]] = {416: _documented(416)}


def problem_answer(
    error: SandlotError,
    request_id: str = "",
    *,
    status: int | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """``status`` instead of the error's own, for what HTTP refuses."""
    problem = problem_of(error, request_id)
    if status is not None:
        problem = replace(problem, status=status, title=HTTPStatus(status).phrase.lower())
    all_headers = dict(headers or {})
    if error.retry_after_s is not None:
        all_headers["Retry-After"] = str(max(0, math.ceil(error.retry_after_s)))
    if problem.status == 401:
        all_headers["WWW-Authenticate"] = "Bearer"
    return Response(encoded(problem), problem.status, all_headers, media_type=PROBLEM_TYPE)


def http_error(status: int, detail: str) -> SandlotError:
    """The error of our tree that stands for a refusal of HTTP."""
    return _BY_STATUS.get(status, InvalidRequest)(detail)


def check_is_post(scope: Scope) -> None:
    if scope["method"] != "POST":
        raise HTTPException(405, "only POST is answered here", headers={"Allow": "POST"})


def internal_error() -> SandlotError:
    return SandlotError("something went wrong here; the request id finds it in the server's log")


def install(app: FastAPI) -> None:
    app.add_exception_handler(SandlotError, _foreseen)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _foreseen)


def answer_to(error: SandlotError | HTTPException, request_id: str) -> Response:
    if isinstance(error, SandlotError):
        return problem_answer(error, request_id)
    if isinstance(error.__cause__, SandlotError):  # FastAPI's own words for what happened to a body
        return problem_answer(error.__cause__, request_id)
    return problem_answer(
        http_error(error.status_code, error.detail),
        request_id,
        status=error.status_code,
        headers=error.headers,
    )


async def _foreseen(request: Request, error: Exception) -> Response:
    assert isinstance(error, SandlotError | HTTPException)
    return answer_to(error, request.state.request_id)


async def _validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    places = [
        {
            "place": readable(".".join(str(part)[:80] for part in found["loc"]))[:MAX_TEXT],
            "problem": readable(str(found["msg"]))[:MAX_TEXT],
        }
        for found in error.errors()[:MAX_NAMED_PLACES]
    ]
    if isinstance(error.body, bytes):
        detail = "send the body as JSON, with the header Content-Type: application/json"
    else:
        detail = "; ".join(f"{named['place']}: {named['problem']}" for named in places[:3])
    return problem_answer(InvalidRequest(detail, details={"places": places}), request.state.request_id)
