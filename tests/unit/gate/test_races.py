"""Which failures of a gate get a second try."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # each case starts a process of its own

ROOT = Path(__file__).parents[3]
FAILS = "def test_fails_{0}(): assert False\n"
LEAVES = """
import pytest
@pytest.fixture
def leaving():
    yield
    assert False
def test_leaves(leaving): pass
"""


def pytest_in(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.gate.plugin", "-c/dev/null"]
    ran = subprocess.run(
        [*command, f"--rootdir={folder}", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return ran.stdout


@pytest.mark.parametrize(
    ("source", "noted"),
    [
        ("def test_passes(): pass\n", []),
        (FAILS.format(1) + "def test_passes(): pass\n", ["test_fails_1"]),
        ("".join(map(FAILS.format, range(3))), ["test_fails_0", "test_fails_1", "test_fails_2"]),
        ("".join(map(FAILS.format, range(4))), []),
        (FAILS.format(1) + LEAVES, []),
        ("import os\ndef test_crashes(): os._exit(3)\n", []),
        ("import nothing_of_that_name\n", []),
    ],
    ids=["none", "one", "three", "four", "left-behind", "crash", "no-import"],
)
def test_a_few_failures_get_a_second_try(tmp_path: Path, source: str, noted: list[str]) -> None:
    (tmp_path / "test_it.py").write_text(source)
    names = tmp_path / "names"
    pytest_in(tmp_path, "-n1", f"--note-races={names}")
    assert names.read_text().splitlines() == [f"test_it.py::{name}" for name in noted]


def test_a_second_try_is_of_the_same_tests(tmp_path: Path) -> None:
    """Whatever their names contain."""
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "@pytest.mark.parametrize('a', ['b c', 'd\\n]', '# e'])\n"
        "def test_fails(a): assert False\n"
        "def test_passes(): pass\n"
    )
    pytest_in(tmp_path, f"--note-races={tmp_path / 'names'}")
    printed = pytest_in(tmp_path, f"@{tmp_path / 'names'}")
    assert "3 failed in" in printed, printed
