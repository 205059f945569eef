"""What a cell's exec writes on stdout: one JSON object in each line.

The lines come out of a sandbox, so anything may be in them. ``parse`` takes what it knows and drops the
rest; it never raises.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

MAX_LINE_BYTES: Final = 16 * 1024 * 1024
# Values with these media types are JSON, as are those whose type ends in ``+json``. The last two are tables
# and charts as data, as E2B's code interpreter calls them.
JSON_TYPES: Final = frozenset({"application/json", "e2b/data", "e2b/chart"})
# Values with these media types are text in base64: pictures and documents.
BINARY_TYPES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf"})


@dataclass(frozen=True, slots=True)
class CellText:
    """The cell wrote this."""

    channel: Literal["stdout", "stderr"]
    text: str


@dataclass(frozen=True, slots=True)
class CellData:
    """The cell's value, or what it displayed, by media type.

    data: text by media type; base64 for ``BINARY_TYPES``; JSON values for JSON types.
    main: whether it is the value of the cell's last expression.
    display_id: what a later update names it by, if the cell said so.
    update: whether it replaces an earlier display of the same id.
    """

    data: Mapping[str, Any]
    main: bool = False
    display_id: str | None = None
    update: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CellError:
    """The cell raised an exception, or its kernel died (``KernelDied``) or was restarted
    (``KernelRestarted``).
    """

    name: str
    value: str
    traceback: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CellCount:
    """The number that the kernel gave to the cell."""

    execution_count: int


@dataclass(frozen=True, slots=True)
class CellCleared:
    """The cell cleared its displays. ``wait``: when the next one comes."""

    wait: bool = False


CellEvent = CellText | CellData | CellError | CellCount | CellCleared


def parse(line: bytes | str) -> CellEvent | None:
    """Read a line; None if it is no event."""
    try:
        body = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(body, dict):
        return None
    match body:
        case {"type": "stdout" | "stderr" as channel, "text": str(text)}:
            return CellText(channel, text)
        case {"type": "data", "data": dict(data)}:
            display_id, metadata = body.get("display_id"), body.get("metadata")
            return CellData(
                {kind: value for kind, value in data.items() if _is_valid(kind, value)},
                main=body.get("main") is True,
                display_id=display_id if isinstance(display_id, str) else None,
                update=body.get("update") is True,
                metadata=metadata if isinstance(metadata, dict) else {},
            )
        case {"type": "error", "name": str(name), "value": str(value)}:
            frames = body.get("traceback")
            traceback = tuple(map(str, frames)) if isinstance(frames, list) else ()
            return CellError(name, value, traceback)
        case {"type": "count", "execution_count": int(count)}:
            return CellCount(count)
        case {"type": "cleared"}:
            return CellCleared(body.get("wait") is True)
    return None


def event_body(event: CellEvent) -> dict[str, Any]:
    """What ``parse`` reads: the JSON object of an event."""
    match event:
        case CellText(channel, text):
            return {"type": channel, "text": text}
        case CellData():
            body: dict[str, Any] = {"type": "data", "data": dict(event.data), "main": event.main}
            named = {} if event.display_id is None else {"display_id": event.display_id}
            return body | named | {"update": event.update, "metadata": dict(event.metadata)}
        case CellError(name, value, traceback):
            return {"type": "error", "name": name, "value": value, "traceback": list(traceback)}
        case CellCount(count):
            return {"type": "count", "execution_count": count}
        case CellCleared(wait):
            return {"type": "cleared", "wait": wait}


def _is_valid(kind: str, value: object) -> bool:
    """Whether a media type has the kind of value that it must have."""
    return isinstance(value, str) or kind in JSON_TYPES or kind.endswith("+json")


class EventLines:
    """Cuts a cell's stdout into events, however it arrives."""

    def __init__(self) -> None:
        self._rest = bytearray()

    @property
    def waiting_bytes(self) -> int:
        """How many bytes of a line that is not whole yet it holds."""
        return len(self._rest)

    def skip(self) -> None:
        """Bytes are missing here: what comes next is the rest of a line whose beginning is not known."""
        # Not valid JSON, so ``parse`` drops the line that it begins.
        self._rest = bytearray(b"\0")

    def feed(self, data: bytes) -> list[CellEvent]:
        self._rest += data
        if b"\n" not in data and len(self._rest) <= MAX_LINE_BYTES:
            return []
        *lines, rest = self._rest.split(b"\n")
        self._rest = rest if len(rest) <= MAX_LINE_BYTES else bytearray()
        return [event for line in lines if (event := parse(bytes(line))) is not None]
