"""How long each group takes, measured: ``tests/durations.json``, which ``make durations`` writes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

FILE = Path(__file__).parents[1] / "durations.json"
# For a group that was never measured. If it takes longer, the gate's end still cuts it short.
UNKNOWN_S = 30.0
# Some groups have tests in both phases, and each phase runs only its own.
PARALLEL, ALONE = "parallel", "alone"


def phase_of(marks: str) -> str:
    """The phase that pytest's ``-m`` selects."""
    return ALONE if marks == "alone" else PARALLEL


def recorded(phase: str, file: Path = FILE) -> dict[str, float]:
    return _read(file).get(phase, {})


def record(phase: str, measured: Mapping[str, float], file: Path) -> None:
    """Leaves the other phase's part of the file as it is."""
    phases = _read(file)
    phases[phase] = {group: round(spent, 1) for group, spent in measured.items()}
    file.write_text(json.dumps(phases, indent=0, sort_keys=True) + "\n")


def _read(file: Path) -> dict[str, dict[str, float]]:
    return json.loads(file.read_text()) if file.exists() else {}
