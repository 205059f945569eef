"""Runs programs that use E2B's SDKs, each in its own environment, and reads what they found out."""

from __future__ import annotations

import ast
import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
NEWEST = ROOT / ".venv-e2b/bin/python"
OLD = ROOT / ".venv-e2b-old/bin/python"
SECONDS = 240


@dataclass(frozen=True)
class Found:
    """``checks``: what each check failed with; empty if it passed. ``calls``: how often each function was called."""

    checks: dict[str, str]
    calls: dict[str, int]


def checks_in(program: str) -> list[str]:
    """The names of a program's checks, without running it: the SDK is not installed here."""
    tree = ast.parse((PROGRAMS / program).read_text())
    return [
        node.name.removeprefix("check_")
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("check_")
    ]


def run(python: Path, program: str, *arguments: str) -> Found:
    assert python.exists(), f"there is no {python}: run make venv"
    process = subprocess.run(
        [python, PROGRAMS / program, *arguments],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env={name: value for name, value in os.environ.items() if not name.startswith(("E2B_", "SANDLOT_"))},
    )
    assert process.returncode == 0, process.stderr
    return Found(**json.loads(process.stdout))
