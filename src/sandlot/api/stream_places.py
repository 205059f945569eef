"""How many event streams and WebSockets a server holds: with one key, from one address and in all.

Each may last for hours, and holds a connection, a reader in a sandbox and what waits to be sent.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from starlette.types import Scope

from sandlot.domain.errors import Busy

_KEYS: Final = (b"authorization", b"x-api-key")


@dataclass(frozen=True, slots=True)
class StreamBounds:
    total: int = 1000
    per_key: int = 500
    per_address: int = 500


class StreamPlaces:
    def __init__(self, bounds: StreamBounds) -> None:
        self._bounds = bounds
        self._taken: Counter[tuple[str, str]] = Counter()

    @contextmanager
    def place(self, scope: Scope) -> Iterator[None]:
        """For one stream, as long as it lasts. ``Busy`` if there is none."""
        bounds = self._bounds
        wanted = {
            ("all", ""): (bounds.total, "on this server"),
            ("key", _key(scope)): (bounds.per_key, "with this key"),
            ("address", _address(scope)): (bounds.per_address, "from this address"),
        }
        for place, (most, whose) in wanted.items():
            if self._taken[place] >= most:
                raise Busy(
                    f"{most} event streams are open {whose}, and no more are allowed; close some, or ask for "
                    "results instead (GET …/execs/{exec_id}?wait_s=…)",
                    retry_after_s=2.0,
                    details={"reason": "streams", "at_most": most},
                )
        self._taken.update(wanted.keys())
        try:
            yield
        finally:
            self._taken.subtract(wanted.keys())
            self._taken += Counter()  # forgets those of which none is left


def is_stream(scope: Scope) -> bool:
    if scope["type"] == "websocket":
        return True
    if scope["path"].endswith("/files/watch"):
        return True
    return any(name == b"accept" and b"text/event-stream" in value for name, value in scope["headers"])


def _key(scope: Scope) -> str:
    """Not the key itself: it is kept as long as a stream lasts."""
    for name, value in scope["headers"]:
        if name in _KEYS:
            return hashlib.sha256(value).hexdigest()
    return ""


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return client[0] if client else ""
