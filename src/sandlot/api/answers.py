"""Answers: a body of wire/ to JSON, without a second validation on the way out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from starlette.responses import Response

JSON: Final = "application/json"
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def encoded(body: object) -> bytes:
    """As JSON. A name that is not UTF-8, which a sandbox may give to a file, is shown with U+FFFD in it."""
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError:
        return msgspec.json.encode(_readable(msgspec.to_builtins(body)))


def readable(text: str) -> str:
    return _SURROGATE.sub("\ufffd", text)


def _readable(value: Any) -> Any:
    if isinstance(value, str):
        return readable(value)
    if isinstance(value, dict):
        return {readable(str(key)): _readable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_readable(item) for item in value]
    return value


def answer(body: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(encoded(body), status, headers, media_type=JSON)
