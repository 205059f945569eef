"""Turns a kernel's messages into the events of a cell: one JSON object in each line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

# Of text in one event. A cell that prints megabytes becomes many lines, so that a cut loses little.
PIECE_CHARACTERS = 32 * 1024
# Of one line. The largest representations of a value are left out beyond it.
MAX_LINE_BYTES = 12 * 1024 * 1024
MAX_FRAMES = 200


def events_of(kind: str, content: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The events that a message on the kernel's IOPub channel stands for."""
    if kind == "stream":
        channel = "stderr" if content.get("name") == "stderr" else "stdout"
        yield from texts(channel, str(content.get("text", "")))
    elif kind in ("display_data", "update_display_data", "execute_result"):
        transient = content.get("transient") or {}
        event: dict[str, Any] = {
            "type": "data",
            "data": dict(content.get("data") or {}),
            "metadata": dict(content.get("metadata") or {}),
        }
        if kind == "execute_result":
            event["main"] = True
        if isinstance(transient.get("display_id"), str):
            event["display_id"] = transient["display_id"]
        if kind == "update_display_data":
            event["update"] = True
        yield from _within_a_line(event)
    elif kind == "error":
        yield error(content.get("ename", ""), content.get("evalue", ""), content.get("traceback") or ())
    elif kind == "clear_output":
        yield {"type": "cleared", "wait": bool(content.get("wait"))}
    elif kind == "execute_input" and isinstance(content.get("execution_count"), int):
        yield {"type": "count", "execution_count": content["execution_count"]}


def texts(channel: str, text: str) -> Iterator[dict[str, Any]]:
    for start in range(0, len(text), PIECE_CHARACTERS):
        yield {"type": channel, "text": text[start : start + PIECE_CHARACTERS]}


def error(name: Any, value: Any, traceback: Any = ()) -> dict[str, Any]:
    frames = [str(frame)[:PIECE_CHARACTERS] for frame in list(traceback)[:MAX_FRAMES]]
    return {
        "type": "error",
        "name": str(name)[:PIECE_CHARACTERS],
        "value": str(value)[:PIECE_CHARACTERS],
        "traceback": frames,
    }


def line_of(event: Mapping[str, Any]) -> bytes:
    # What a kernel sends may hold half a surrogate pair, which ASCII escapes carry.
    return json.dumps(event).encode("ascii") + b"\n"


def _within_a_line(event: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The event; without its largest representations, and with a note about them, if it is too long."""
    left_out = []
    data = event["data"]
    while len(line_of(event)) > MAX_LINE_BYTES and data:
        largest = max(data, key=lambda kind: len(json.dumps(data[kind])))
        left_out.append(f"{largest} ({len(json.dumps(data[largest]))} bytes)")
        del data[largest]
        event["metadata"] = {}
    if data:
        yield event
    if left_out:
        yield {"type": "stderr", "text": f"Too large to show, so left out: {', '.join(left_out)}.\n"}
