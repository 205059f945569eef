"""Limits on a server's open event streams and WebSockets: per key, per address and in total.

Each may last for hours, and holds a connection, a reader in a sandbox and unsent data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from starlette.types import Scope

from sandlot.domain.callers.principal import Principal
from sandlot.domain.capacity import client_limits
from sandlot.domain.errors import Busy

# How streams of the Connect protocol begin to name their type.
CONNECT_STREAM = b"application/connect+"


@dataclass(frozen=True, slots=True)
class StreamLimits:
    total: int = client_limits.MAX_STREAMS
    per_key: int = client_limits.MAX_STREAMS_PER_KEY
    per_address: int = client_limits.MAX_STREAMS_PER_ADDRESS


class StreamSlots:
    """Counts open streams against the limits."""

    def __init__(self, limits: StreamLimits) -> None:
        self._limits = limits
        self._taken: Counter[tuple[str, str]] = Counter()

    @contextmanager
    def slot(self, scope: Scope) -> Iterator[None]:
        """Hold a slot for one stream while the context is open. Raises ``Busy`` if none is free."""
        limits = self._limits
        needed = {
            ("all", ""): (limits.total, "on this server"),
            ("key", _key(scope)): (limits.per_key, "with this key"),
            ("address", _address(scope)): (limits.per_address, "from this address"),
        }
        for counter, (most, where) in needed.items():
            if self._taken[counter] >= most:
                raise Busy(
                    f"The limit of {most} open event streams {where} is reached. Close some, or fetch "
                    f"results without a stream (GET …/execs/{{exec_id}}?wait_s=…).",
                    retry_after_s=2.0,
                    details={"reason": "streams", "at_most": most},
                )
        self._taken.update(needed.keys())
        try:
            yield
        finally:
            self._taken.subtract(needed.keys())
            self._taken += Counter()  # drops counters at zero


def is_stream(scope: Scope) -> bool:
    if scope["type"] == "websocket":
        return True
    if scope["path"].endswith(("/files/watch", "/cells")):
        return True
    return any(
        (name == b"accept" and b"text/event-stream" in value)
        or (name == b"content-type" and value.startswith(CONNECT_STREAM))
        for name, value in scope["headers"]
    )


def _key(scope: Scope) -> str:
    """Names the caller, who may have many tokens and ways to write a key."""
    caller = scope["state"].get("principal")
    return f"{caller.tenant} {caller.key_id} {caller.subject}" if isinstance(caller, Principal) else ""


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return client[0] if client else ""
