"""How long each group takes, measured: ``tests/durations.json``, which ``make durations`` writes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

FILE = Path(__file__).parents[1] / "durations.json"
# For a group that was never measured. New suites that are slower than that are bounded by the gate's end alone.
UNKNOWN_S = 30.0


def recorded(file: Path = FILE) -> dict[str, float]:
    return json.loads(file.read_text()) if file.exists() else {}


def record(measured: Mapping[str, float], file: Path) -> None:
    """Adds to what the file has: the tests run in two phases, and each knows its own groups."""
    seconds = recorded(file) | {group: round(spent, 1) for group, spent in measured.items()}
    file.write_text(json.dumps(seconds, indent=0, sort_keys=True) + "\n")
