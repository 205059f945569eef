"""S14: what development and CI install is locked by hash, wherever it comes from."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))


def requirements(lock: Path) -> list[str]:
    """Each with its hashes, on one line."""
    lines = lock.read_text().replace("\\\n", " ").splitlines()
    return [line for line in lines if line.strip() and not line.lstrip().startswith("#")]


def test_s14_locks_are_there() -> None:
    assert [lock.name for lock in LOCKS] == ["dev.txt", "mcp1.txt"]


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_s14_every_requirement_has_one_version_and_a_hash(lock: Path) -> None:
    found = requirements(lock)
    assert len(found) > 30
    locked = re.compile(
        r"[A-Za-z0-9._-]+(\[[a-z0-9,_-]+\])?==[^\s;]+( ; [^\\]+?)?(\s+--hash=sha256:[0-9a-f]{64})+"
    )
    assert [line[:80] for line in found if not locked.fullmatch(line.strip())] == []


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_s14_lock_names_no_registry(lock: Path) -> None:
    text = lock.read_text()
    assert "://" not in text
    assert not re.search(
        r"^\s*(-i|-f|--(extra-)?index-url|--find-links|--trusted-host)\b", text, re.MULTILINE
    )


def test_s14_hashes_are_required_and_renewed() -> None:
    """But for the project itself, which is installed from its folder and brings nothing along."""
    rules = (ROOT / "Makefile").read_text()
    installs = re.findall(r"^.*pip install .*$", rules, re.MULTILINE)
    assert len(installs) == 4
    assert ["--require-hashes" in line or "--no-deps" in line for line in installs] == [True] * 4
    assert "--generate-hashes --no-emit-index-url" in rules
