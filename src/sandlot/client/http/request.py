"""What goes into a request: path segments, queries, headers, JSON; of values that may be wrong."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from sandlot.domain.errors import InvalidRequest


def segment(text: str) -> str:
    """One segment of a path, whatever is in it. Dots would climb to another resource on the way."""
    if text in {"", ".", ".."}:
        raise InvalidRequest(f"{text!r} cannot be an id or a name")
    return quote(_encodable(text), safe="")


def query(**values: str | float | bool | None) -> str:
    """Those that are not None, with a question mark before them if there are any."""
    pairs = {
        name: ("true" if value else "false") if isinstance(value, bool) else _encodable(str(value))
        for name, value in values.items()
        if value is not None
    }
    return "?" + urlencode(pairs) if pairs else ""


def header(text: str) -> str:
    if not (text.isascii() and text.isprintable()):
        raise InvalidRequest("an idempotency key is printable ASCII")
    return text


def encode(body: Any) -> bytes:
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError as error:
        raise InvalidRequest("this is not text that UTF-8 can write; give bytes as stdin") from error
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise InvalidRequest(f"this cannot be sent as JSON: {error}") from error


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"{text!r:.80} is not text that UTF-8 can write") from error
    return text
