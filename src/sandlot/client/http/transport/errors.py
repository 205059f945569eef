"""Turns failed requests and error answers into ``SandlotError``."""

from __future__ import annotations

from collections.abc import Mapping

import httpx
import msgspec

from sandlot.client.http.retries.rules import FIRST_PAUSE_S
from sandlot.domain import errors
from sandlot.domain.errors import UNREACHABLE, LinkInterrupted, SandlotError, Unavailable
from sandlot.wire.error_codes import Problem, error_of

_PROBLEM = msgspec.json.Decoder(Problem)


class ReadTimedOut(LinkInterrupted):
    """The server did not answer in time."""


_BY_STATUS: dict[int, type[SandlotError]] = {
    401: errors.Unauthorized,
    403: errors.Unauthorized,
    404: errors.NotFound,
    408: errors.LinkInterrupted,
    409: errors.Conflict,
    413: errors.TooLarge,
    422: errors.InvalidRequest,
    429: errors.Busy,
    # From a proxy without a server. If it lost the server, it may have forwarded the request.
    502: errors.LinkInterrupted,
    503: errors.Unavailable,
    504: errors.LinkInterrupted,
}


def error_of_answer(url: str, status: int, body: bytes, headers: Mapping[str, str]) -> SandlotError:
    """Turn an error answer into its error.

    A Sandlot server explains the problem. For a proxy or another program, the error names the URL.
    """
    try:
        return error_of(_PROBLEM.decode(body))
    except msgspec.MsgspecError:
        text = " ".join(body[:200].decode("utf-8", "replace").split())
    if 300 <= status < 400:
        where = headers.get("location", "an unknown address")
        return errors.InvalidRequest(
            f"{url} redirects to {where:.200}. Use that as the server's URL.", details=_foreign(status)
        )
    retry_after = headers.get("retry-after", "")
    return _BY_STATUS.get(status, SandlotError)(
        f"{url} returned status {status}, and the response is not from a Sandlot server "
        f"({text or 'no body'}). Check the URL, and whether a proxy there can reach its server.",
        # A proxy's 503 means that it has no server. Any other failure may come after the request.
        may_have_executed=True if status >= 500 and status != 503 else None,
        retry_after_s=float(retry_after) if retry_after.isdecimal() else None,
        details=_foreign(status),
    )


def _foreign(status: int) -> dict[str, int]:
    return {"foreign_status": status}


def error_of_problem(body: bytes | str) -> SandlotError:
    try:
        return error_of(_PROBLEM.decode(body))
    except msgspec.MsgspecError:
        return SandlotError(
            "The server reported an error that this client cannot read.", may_have_executed=True
        )


def wrong_server(url: str, worker: str, status: int) -> SandlotError:
    """Return the error for an answer that is not from the expected worker.

    A failed proxy in front of the worker may have forwarded the request. Any other program has not.
    """
    return Unavailable(
        f"{url} returned status {status} and is not worker {worker}. Another program answers at this "
        "address. Check the worker's SANDLOT_ADVERTISE_URL.",
        may_have_executed=status >= 500,
        retry_after_s=FIRST_PAUSE_S,
    )


def unreachable(url: str, why: object) -> SandlotError:
    # The pause is for a restarting server. Nothing was sent, so any call can be repeated.
    return Unavailable(
        f"Cannot connect to {url} ({why}). Is a Sandlot server running there?",
        retry_after_s=FIRST_PAUSE_S,
        details={"reason": UNREACHABLE},
    )


def interrupted(url: str, why: object, kind: type[LinkInterrupted] = LinkInterrupted) -> SandlotError:
    return kind(f"Lost the connection to {url} before the response was complete ({why}).")


def is_transport_failure(error: SandlotError) -> bool:
    """Whether the error is not from a Sandlot server.

    Then no server was reached, the connection broke, or another program answered.
    """
    if "request_id" in error.details:
        return False
    return isinstance(error, (LinkInterrupted, Unavailable)) or "foreign_status" in error.details


def error_of_transport(url: str, error: httpx.HTTPError | httpx.StreamError) -> SandlotError:
    if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError, httpx.PoolTimeout)):
        return unreachable(url, str(error) or "no response")
    if isinstance(error, (httpx.LocalProtocolError, httpx.UnsupportedProtocol)):
        return errors.InvalidRequest(f"Cannot send this request to {url}: {error}")
    if isinstance(error, httpx.TimeoutException):
        kind = ReadTimedOut if isinstance(error, httpx.ReadTimeout) else LinkInterrupted
        return interrupted(url, "no response in time", kind)
    return interrupted(url, str(error) or type(error).__name__)


def unreadable(url: str, why: object) -> SandlotError:
    return SandlotError(
        f"Cannot read the response of {url} ({why}). Check that it is a Sandlot server of the same version.",
        may_have_executed=True,
    )
