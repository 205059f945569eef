"""The site is built without a warning, and every link on it leads to something that it has."""

from __future__ import annotations

import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[2]
ZENSICAL = Path(sys.executable).parent / "zensical"

pytestmark = pytest.mark.slow


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: set[str] = set()
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.ids.add(named.get("id") or "")
        self.targets |= {named[name] or "" for name in ("href", "src") if name in named}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    subprocess.run([sys.executable, "-B", ROOT / "docs/site/stage.py", folder], check=True, timeout=60)
    return folder


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ZENSICAL, "build", "--strict"], cwd=folder, capture_output=True, text=True, timeout=150, check=False
    )


@pytest.fixture(scope="module")
def site(folder: Path) -> Path:
    built = build(folder)
    assert built.returncode == 0, built.stdout + built.stderr
    assert "No issues found" in built.stdout + built.stderr
    return folder / "site"


def test_every_link_leads_somewhere(site: Path) -> None:
    pages = {path: Page(path.read_text()) for path in site.rglob("*.html") if path.name != "404.html"}
    assert len(pages) > 50
    dead: list[str] = []
    outside: set[str] = set()
    for path, page in pages.items():
        for target in page.targets:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                outside.add(target)
                continue
            aim = Path(os.path.normpath(path.parent / unquote(parts.path))) if parts.path else path
            aim = aim / "index.html" if aim.is_dir() else aim
            found = aim.is_file() and (
                not parts.fragment or aim.suffix != ".html" or unquote(parts.fragment) in pages[aim].ids
            )
            if not found:
                dead.append(f"{path.relative_to(site)}: {target}")
    assert dead == []
    assert any(target.startswith("https://") for target in outside)


def test_a_browser_asks_no_other_host(site: Path) -> None:
    for path in site.rglob("*.html"):
        text = path.read_text()
        assert 'src="http' not in text, path
        assert "fonts.googleapis" not in text, path


def test_a_broken_link_fails(site: Path, folder: Path) -> None:
    page = folder / "docs/howto/keys.md"
    page.write_text(page.read_text() + "\n[nowhere](limits.md#no-such-heading)\n")
    assert build(folder).returncode != 0
