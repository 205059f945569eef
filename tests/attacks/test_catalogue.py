"""docs/reference/attacks.md and findings.md say the truth: every number once, every test that they name exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ATTACKS = ROOT / "docs/reference/attacks.md"
FINDINGS = ROOT / "docs/reference/findings.md"
NUMBERS = set(range(1, 102)) - {21, 25, 42, 61, 63, 73, 100}  # those that the catalogue does not use
WAITING: set[int] = set()
OURS = [f"C{number}" for number in range(1, 11)]
CODES = {
    *(f"S{number}" for number in range(1, 16)),
    *(f"R{number}" for number in range(1, 11)),
    *(f"U{number}" for number in range(1, 20)),
    *(f"O{number}" for number in range(1, 12)),
    "T1",
}
ROW = re.compile(r"^\| ([A-Z]?\d+) \|(.*)\|$", re.MULTILINE)
NAMED = re.compile(r"`((?:tests|src|agent)/[^`\s]+)`")


def rows(page: Path) -> list[tuple[str, list[str]]]:
    """Number, then the cells after it."""
    return [
        (number, [cell.strip() for cell in rest.split("|")]) for number, rest in ROW.findall(page.read_text())
    ]


@cache
def defined(path: Path) -> frozenset[str]:
    """The tests of a file, in classes too."""
    text = path.read_text()
    if path.suffix == ".go":
        return frozenset(re.findall(r"^func (Test\w+)\(", text, re.MULTILINE))
    nodes = ast.walk(ast.parse(text))
    return frozenset(
        node.name
        for node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    )


def missing(cell: str) -> list[str]:
    """Of the tests that are named, those that do not exist."""
    absent = []
    for named in NAMED.findall(cell):
        path, _, name = named.partition("::")
        if not (ROOT / path).is_file() or name not in defined(ROOT / path):
            absent.append(named)
    return absent


def test_every_attack_is_there_once() -> None:
    numbers = [number for number, _ in rows(ATTACKS)]
    assert sorted(int(number) for number in numbers if number.isdigit()) == sorted(NUMBERS)
    assert [number for number in numbers if not number.isdigit()] == OURS


@pytest.mark.parametrize(
    ("number", "cells"), rows(ATTACKS), ids=lambda value: value if isinstance(value, str) else ""
)
def test_attack_is_shown_or_says_what_it_waits_for(number: str, cells: list[str]) -> None:
    attack, outcome, tier, shown = cells
    assert attack
    assert outcome
    if number.isdigit() and int(number) in WAITING:
        assert re.match(r"waits for [a-z ]+: .+", shown)
        return
    assert NAMED.search(shown), "it names no test"
    assert missing(shown) == []
    assert tier in ("both", "runc", "\u2013")


def test_most_attacks_are_shown() -> None:
    shown = [number for number, cells in rows(ATTACKS) if not cells[-1].startswith("waits for ")]
    assert len(shown) == len(NUMBERS) - len(WAITING) + len(OURS) == 104


def test_what_waits_is_in_the_security_page() -> None:
    """With its number and the reason, so that nobody takes it for a promise."""
    text = (ROOT / "SECURITY.md").read_text().partition("## What is not defended")[2].partition("\n## ")[0]
    listed = {
        int(number)
        for numbers in re.findall(r"\(attacks? ([\d, ]+)\)", text)
        for number in numbers.split(",")
    }
    assert listed == WAITING


def test_every_test_that_says_a_number_stands_at_it() -> None:
    """``test_27_…`` of tests/attacks is named in line 27."""
    shown = {int(number): cells[-1] for number, cells in rows(ATTACKS) if number.isdigit()}
    files = sorted((ROOT / "tests/attacks").glob("test_*.py"))
    numbered = [
        (int(found[1]), path, name)
        for path in files
        for name in defined(path)
        if (found := re.match(r"test_(\d+)_", name))
    ]
    assert len(numbered) > 20
    for number, path, name in numbered:
        assert f"`{path.relative_to(ROOT)}::{name}`" in shown[number]


def test_every_finding_is_there_once() -> None:
    assert sorted(code for code, _ in rows(FINDINGS)) == sorted(CODES)


@pytest.mark.parametrize(
    ("code", "cells"), rows(FINDINGS), ids=lambda value: value if isinstance(value, str) else ""
)
def test_finding_has_its_test(code: str, cells: list[str]) -> None:
    wrong, tests, fix = cells
    assert wrong
    assert fix
    assert NAMED.search(tests) or "(later work" in tests, f"{code} names no test"
    assert missing(tests) == []


def test_101_what_is_not_defended_is_documented() -> None:
    """A worker has the engine's socket, and who has that is root: said, with what would narrow it."""
    text = (ROOT / "SECURITY.md").read_text()
    undefended = text.partition("## What is not defended")[2].partition("\n## ")[0]
    assert "The Docker socket is root" in undefended
    assert "validating proxy" in undefended
