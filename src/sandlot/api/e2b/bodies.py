"""Reads what clients send, strictly: bounded, typed, and with no field that would be ignored."""

from __future__ import annotations

import re
from typing import Final, TypeVar

import msgspec
from starlette.exceptions import HTTPException

from sandlot.api.edge.request_body import decode_json
from sandlot.domain.errors import InvalidRequest

T = TypeVar("T")

_UNKNOWN: Final = re.compile(r"Object contains unknown field `([^`]{1,80})`(.*)", re.DOTALL)


class Body(msgspec.Struct, forbid_unknown_fields=True, rename="camel", frozen=True):
    """A JSON object. A field that is not known here is an error: what it asks for would not happen."""


def read_body(data: bytes, kind: type[T]) -> T:
    """An empty body is an object without fields."""
    try:
        return msgspec.convert(decode_json(data or b"{}"), kind)
    except HTTPException as error:
        raise InvalidRequest(error.detail) from None
    except msgspec.ValidationError as error:
        raise InvalidRequest(_explained(str(error))) from None


def _explained(message: str) -> str:
    unknown = _UNKNOWN.fullmatch(message)
    if unknown is None:
        return f"Invalid request: {message[:300]}"
    return (
        f"Sandlot does not know the field {unknown[1]!r}{unknown[2][:100]}, so it would do something else "
        "than you ask for. docs/howto/e2b-sdk.md lists what it knows."
    )
