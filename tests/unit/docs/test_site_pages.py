"""Each page has a place on the site, and each of its links leads there too."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
SITE = ROOT / "docs/site"


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    subprocess.run([sys.executable, "-B", SITE / "stage.py", folder], check=True, timeout=60)
    return folder


def test_every_page_is_in_the_navigation_once(staged: Path) -> None:
    written = (staged / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    named: list[str] = []

    def walk(entries: object) -> None:
        for entry in entries if isinstance(entries, list) else []:
            for value in entry.values():
                named.append(value) if isinstance(value, str) else walk(value)

    walk(yaml.safe_load(written))
    docs = staged / "docs"
    pages = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")}
    assert sorted(named) == sorted(path for path in pages if not path.startswith("files/"))
    assert len(named) > 50


def test_the_order_names_pages_that_exist_and_leaves_none_over(staged: Path) -> None:
    """A page that has no place in its section would stand at its end, under "More"."""
    program = "import json, stage; print(json.dumps(stage.FIRST))"
    shown = subprocess.run(
        [sys.executable, "-Bc", program], cwd=SITE, capture_output=True, text=True, timeout=60, check=True
    )
    groups: dict[str, str] = json.loads(shown.stdout)
    ordered = [f"{group.partition('/')[0]}/{name}.md" for group in groups for name in groups[group].split()]
    assert [page for page in ordered if not (staged / "docs" / page).is_file()] == []
    assert "- More:" not in (staged / "mkdocs.yml").read_text()


def test_the_readme_is_the_front_page(staged: Path) -> None:
    front = (staged / "docs/index.md").read_text()
    assert front.startswith("# Sandlot\n")
    assert "](tutorial/first-steps.md)" in front
    assert "](pictures/overview.svg)" in front
    assert (staged / "docs/pictures/overview.svg").is_file()


def rewritten(text: str) -> str:
    program = (
        "import sys; from pathlib import Path; from links import Links\n"
        "pages = {'README.md': 'index.md', 'docs/howto/a.md': 'howto/a.md', 'SECURITY.md': 'project/security.md'}\n"
        f"print(Links(Path({str(ROOT)!r}), pages).rewritten('docs/howto/a.md', sys.stdin.read()), end='')"
    )
    done = subprocess.run(
        [sys.executable, "-Bc", program], input=text, cwd=SITE, capture_output=True, text=True, timeout=60
    )
    return done.stdout + done.stderr.rpartition("links.")[2]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[x](../../README.md#install)", "[x](../index.md#install)"),
        ("[x](../../SECURITY.md) [y](#here)", "[x](../project/security.md) [y](#here)"),
        ("[x](https://example.org/a.md)", "[x](https://example.org/a.md)"),
        ("[x](../../Makefile)", "[x](../files/Makefile.md)"),
        ("`[x](../../SECURITY.md)`", "`[x](../../SECURITY.md)`"),
        ("```\n[x](nothing.md)\n```", "```\n[x](nothing.md)\n```"),
        ("[x](nothing.md)", "BrokenLinkError: docs/howto/a.md links to nothing.md, and docs/howto/nothing.md is no file"),
    ],
)  # fmt: skip
def test_links(text: str, expected: str) -> None:
    assert rewritten(text + "\n") == expected + "\n"
