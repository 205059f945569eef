"""Rooms stay small enough to look over: no source file over 400 lines, no folder with more than 15 of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAX_LINES = 400
MAX_FILES = 15
SOURCES = [
    path
    for folder, ending in (("src", ".py"), ("agent", ".go"), ("bench", ".py"))
    for path in sorted((ROOT / folder).rglob(f"*{ending}"))
    if not path.name.endswith("_test.go")
]


def test_no_file_is_too_long() -> None:
    assert len(SOURCES) > 300
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in SOURCES}
    assert {name: lines for name, lines in lengths.items() if lines > MAX_LINES} == {}


def test_no_folder_is_too_full() -> None:
    files = Counter(str(path.parent.relative_to(ROOT)) for path in SOURCES if path.name != "__init__.py")
    assert {folder: count for folder, count in files.items() if count > MAX_FILES} == {}
