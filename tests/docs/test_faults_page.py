"""docs/reference/faults.md and the tests say the same: every number that a test names is explained there, and every
line there names tests that exist and say its number."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/reference/faults.md"
ROW = re.compile(r"^\| (\d+) \|.*\| (`tests/[^|]*`) \|$", re.MULTILINE)
NUMBERS = re.compile(r"^Faults? ([\d, -]+)")
FILES = sorted([*(ROOT / "tests/faults").glob("test_*.py"), *(ROOT / "tests/fleet_faults").glob("test_*.py")])


def numbers(docstring: str | None) -> Iterator[int]:
    named = NUMBERS.match(docstring or "")
    for part in re.findall(r"\d+(?:-\d+)?", named[1]) if named else ():
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def named_in(path: Path) -> set[int]:
    tree = ast.parse(path.read_text())
    nodes = [
        tree,
        *(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)),
    ]
    return {number for node in nodes for number in numbers(ast.get_docstring(node))}


ROWS = {int(number): re.findall(r"`(tests/[^`]+)`", named) for number, named in ROW.findall(PAGE.read_text())}


def test_every_number_of_a_test_is_explained() -> None:
    named = {number for path in FILES for number in named_in(path)}
    assert len(named) > 30
    assert named == set(ROWS)


@pytest.mark.parametrize("number", ROWS)
def test_every_line_is_shown(number: int) -> None:
    for shown in ROWS[number]:
        path, _, name = shown.partition("::")
        text = (ROOT / path).read_text()
        assert not name or re.search(rf"^async def {name}\(", text, re.MULTILINE), shown
        assert number in named_in(ROOT / path), f"{path} says nothing of fault {number}"
