"""Takes secrets out of answers: a host may repeat the request that it got.

Only the value itself is found, in headers and in bodies that are not compressed. In a body, asterisks of the
same number take its place, so lengths stay right.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import h11

MASK: Final = b"***"


class Redaction:
    """``values``: what must not be read."""

    def __init__(self, values: Sequence[bytes] = ()) -> None:
        self._values = sorted(values, key=len, reverse=True)

    def head(self, response: h11.Response) -> h11.Response:
        if not self._values:
            return response
        return h11.Response(
            status_code=response.status_code,
            reason=self._masked(bytes(response.reason)),
            headers=[(self._masked(name), self._masked(value)) for name, value in response.headers],
        )

    def body(self) -> RedactedBody:
        return RedactedBody(self._values)

    def _masked(self, text: bytes) -> bytes:
        masked = text
        for value in self._values:
            masked = masked.replace(value, MASK)
        # A secret that has asterisks can arise anew from what was masked.
        return MASK if any(value in masked for value in self._values) else masked


class RedactedBody:
    """A body in pieces. The end of a piece is held back while it could begin a secret."""

    def __init__(self, values: Sequence[bytes]) -> None:
        self._values = values
        # A character that no secret has: none can arise anew from what was masked.
        self._mask = b"*" if not any(b"*" in value for value in values) else b"\x7f"
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        if not self._values:
            return data
        data = self._held + data
        for value in self._values:
            data = data.replace(value, self._mask * len(value))
        held = max(_begun(data, value) for value in self._values)
        self._held = data[len(data) - held :]
        return data[: len(data) - held]

    def end(self) -> bytes:
        held, self._held = self._held, b""
        return held


def _begun(data: bytes, value: bytes) -> int:
    """How many bytes at the end of the data are a beginning of the value."""
    at = data.find(value[:1], max(0, len(data) - len(value) + 1))
    while at >= 0:
        if value.startswith(data[at:]):
            return len(data) - at
        at = data.find(value[:1], at + 1)
    return 0


NOTHING: Final = Redaction()
