"""Headers of HTTP/1.1 messages that are passed on: which go with the message, and how long its body is. Pure.

Names are in lower case. The egress proxy and previews use these, each with h11, which writes every message
anew. So no header of one side decides where a message of the other side ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

Pairs = Iterable[tuple[bytes, bytes]]
Headers = list[tuple[bytes, bytes]]

# Meant for the next hop alone. ``framing`` sets those that say how long a body is.
HOP_BY_HOP: Final = frozenset(
    {
        *(b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"proxy-authorization"),
        *(b"te", b"trailer", b"transfer-encoding", b"content-length", b"upgrade", b"expect"),
    }
)


def values_of(headers: Pairs, name: bytes) -> list[bytes]:
    return [value for key, value in headers if key == name]


def end_to_end(headers: Pairs) -> Headers:
    """The headers without those for the next hop, which ``Connection`` may add to."""
    pairs = list(headers)
    named = {
        token.strip().lower() for value in values_of(pairs, b"connection") for token in value.split(b",")
    }
    return [pair for pair in pairs if pair[0] not in HOP_BY_HOP and pair[0] not in named]


def framing(headers: Pairs) -> Headers:
    """How the body of a message ends that h11 has read."""
    pairs = list(headers)
    if values_of(pairs, b"transfer-encoding"):
        return [(b"transfer-encoding", b"chunked")]
    return [(b"content-length", value) for value in values_of(pairs, b"content-length")[:1]]


def has_two_ends(headers: Pairs) -> bool:
    """Whether the body could be read in two ways. h11 refuses lengths that differ and unknown encodings."""
    pairs = list(headers)
    return bool(values_of(pairs, b"transfer-encoding") and values_of(pairs, b"content-length"))
