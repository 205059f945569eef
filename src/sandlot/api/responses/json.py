"""JSON responses: encodes a body from wire/ without validating it a second time."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from starlette.responses import Response

JSON: Final = "application/json"
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def encode_json(body: object) -> bytes:
    """Encode as JSON. In file names that are not UTF-8, U+FFFD replaces the invalid bytes."""
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError:
        return msgspec.json.encode(_replace_all_surrogates(msgspec.to_builtins(body)))


def replace_surrogates(text: str) -> str:
    return _SURROGATE.sub("\ufffd", text)


def _replace_all_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return replace_surrogates(value)
    if isinstance(value, dict):
        return {replace_surrogates(str(key)): _replace_all_surrogates(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_replace_all_surrogates(item) for item in value]
    return value


def json_response(body: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(encode_json(body), status, headers, media_type=JSON)
