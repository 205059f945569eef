"""Builds the parts of a request (path, query, headers, JSON) and rejects invalid values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from sandlot.domain.errors import InvalidRequest


def segment(text: str) -> str:
    """Escape one path segment.

    ``.`` and ``..`` are refused: they would lead to another resource.
    """
    if text in {"", ".", ".."}:
        raise InvalidRequest(f"{text!r} is not a valid id or name.")
    return quote(_encodable(text), safe="")


def query(**values: str | float | bool | Sequence[str] | None) -> str:
    """Return the query string of all values that are not None, with its question mark, or "".

    A sequence gives its name once for each of its values.
    """
    pairs = [
        (name, ("true" if value else "false") if isinstance(value, bool) else _encodable(str(value)))
        for name, given in values.items()
        if given is not None
        for value in ((given,) if isinstance(given, str | float | int) else given)
    ]
    return "?" + urlencode(pairs) if pairs else ""


def header(text: str) -> str:
    """Return an idempotency key if it can be sent as a header."""
    if not (text.isascii() and text.isprintable()):
        raise InvalidRequest("An idempotency key must be printable ASCII.")
    return text


def encode(body: Any) -> bytes:
    """Encode a body as JSON."""
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError as error:
        raise InvalidRequest("stdin is not valid Unicode text. Pass bytes instead.") from error
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise InvalidRequest(f"Cannot encode this request as JSON: {error}") from error


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"{text!r:.80} is not valid Unicode text.") from error
    return text
