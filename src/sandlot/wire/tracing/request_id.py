"""The id that a request's response and log entries carry.

A coordinator passes it on to the worker that it calls, so that the logs of both have the id that
the client saw.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

REQUEST_ID_HEADER: Final = "X-Request-Id"
# The id of the request being served; empty outside a request.
current_request_id: Final[ContextVar[str]] = ContextVar("sandlot_current_request_id", default="")
