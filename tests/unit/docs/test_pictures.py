"""The pictures are what docs/pictures/draw.py draws, the pages show them, and they name what the code names."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[3]
PICTURES = ROOT / "docs/pictures"
PAGES = {
    "overview.svg": "README.md",
    "floors.svg": "ARCHITECTURE.md",
    "lives.svg": "ARCHITECTURE.md",
    "parts.svg": "docs/explanation/architecture.md",
    "walls.svg": "docs/explanation/isolation.md",
}
SVG = "{http://www.w3.org/2000/svg}"


def test_the_committed_pictures_are_up_to_date(tmp_path: Path) -> None:
    """Drawing also checks that no text crosses a border, a line or another text."""
    subprocess.run([sys.executable, "-B", PICTURES / "draw.py", tmp_path], check=True, timeout=60)
    drawn = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert drawn.keys() == {path.name for path in PICTURES.glob("*.svg")} == PAGES.keys()
    for name, text in drawn.items():
        assert (PICTURES / name).read_text() == text, "run: python docs/pictures/draw.py"


@pytest.mark.parametrize("name", PAGES)
def test_its_page_shows_it_and_it_has_a_description(name: str) -> None:
    page = ROOT / PAGES[name]
    shown = re.findall(r"!\[[^]]*\]\(([^)]+)\)", page.read_text())
    assert (PICTURES / name) in [(page.parent / target).resolve() for target in shown]
    picture = ElementTree.parse(PICTURES / name).getroot()
    for words in ("title", "desc"):
        assert picture.findtext(SVG + words), words


def test_the_steps_have_the_names_of_the_code() -> None:
    source = "\n".join(path.read_text() for path in (ROOT / "src/sandlot").rglob("*.py"))
    shown = [part.text or "" for part in ElementTree.parse(PICTURES / "lives.svg").iter(f"{SVG}tspan")]
    names = {name for text in shown for name in re.findall(r"[A-Za-z_]{4,}", text)}
    assert len(names) > 10
    assert [name for name in names if name not in source] == []
