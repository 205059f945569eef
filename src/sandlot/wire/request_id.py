"""The id under which a request is answered and logged. A coordinator gives it on to the worker that it asks:
what a client was told is then found in the logs of both.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

REQUEST_ID_HEADER: Final = "X-Request-Id"
# Of the request that is being served here; empty where there is none.
served_request: Final[ContextVar[str]] = ContextVar("sandlot_served_request", default="")
