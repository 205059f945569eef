"""Every block of code on a page is run by a test, or a comment before it says why not."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from sandlot.reference.pages import PAGES

ROOT = Path(__file__).parents[3]
GENERATED = {f"docs/reference/{name}" for name in PAGES}
FILES = [
    "README.md",
    "deploy/README.md",
    *(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/**/*.md")),
]
WRITTEN = sorted(set(FILES) - GENERATED)

# Which test runs the blocks of which pages, in which languages. Pages are named as the test names them.
FOLLOWED = ("bash", "python")
RUN = {
    "tests/docs/test_tutorial.py": (FOLLOWED, ["docs/tutorial/first-steps.md"]),
    "tests/docs/test_howto_pages.py": (FOLLOWED, ["docs/howto/custom-image.md", "docs/howto/local-mode.md"]),
    "tests/docs/test_agent_pages.py": (
        ("python",),
        [
            "docs/howto/agents.md",
            "docs/howto/mcp.md",
            "docs/howto/e2b-sdk.md",
            "docs/howto/system-prompt.md",
            "docs/howto/move-from-e2b.md",
            "docs/howto/move-from-local-shell.md",
            "docs/howto/upgrade-to-0.2.md",
        ],
    ),
    "tests/docs/test_rewind_page.py": (("python",), ["docs/howto/rewind.md"]),
    "tests/docs/test_code_page.py": (("python",), ["docs/howto/code.md", "docs/cookbook/analysis.md"]),
    "tests/docs/test_webhooks_page.py": (("python",), ["docs/howto/webhooks.md"]),
    "tests/docs/test_backup_page.py": (("bash",), ["docs/operations/backup.md"]),
    "tests/faults/test_backup.py": (("bash",), ["docs/operations/backup.md"]),
    "tests/docs/operations/test_fleet.py": (
        ("bash",),
        ["docs/howto/fleet-operations.md", "docs/howto/keys.md"],
    ),
    "tests/docs/operations/test_server.py": (("bash",), ["docs/operations/procedures.md"]),
    "tests/docs/operations/test_watch.py": (
        ("bash",),
        ["docs/operations/watching.md", "docs/operations/traces.md"],
    ),
    "tests/docs/test_cookbook_fleet.py": (FOLLOWED, ["docs/cookbook/fleet.md"]),
    "tests/docs/test_cookbook.py": (
        ("python",),
        ["docs/howto/artifacts.md", "docs/howto/previews.md", "docs/howto/recordings.md"],
    ),
}
COOKBOOK = "tests/docs/test_cookbook.py"  # names the folder, and the pages that others follow

LANGUAGES = {page: languages for languages, pages in RUN.values() for page in pages} | {
    page: FOLLOWED
    for page in WRITTEN
    if page.startswith("docs/cookbook/") and not page.endswith(("analysis.md", "fleet.md"))
}
EXAMPLES = {path.read_text() for path in ROOT.glob("examples/**/*.py")}
FENCE = re.compile(r"^```(\w*)(?: (\w+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
REASON = re.compile(r"<!-- not run: \S.{9,} -->$")


@dataclass(frozen=True)
class Fenced:
    line: int
    language: str
    text: str
    reason: bool


def fenced(page: str) -> list[Fenced]:
    whole = (ROOT / page).read_text()
    return [
        Fenced(
            whole.count("\n", 0, found.start()) + 1,
            found[1],
            found[3],
            REASON.search(whole[: found.start()].rstrip()) is not None,
        )
        for found in FENCE.finditer(whole)
    ]


def neither(page: str) -> list[str]:
    """The blocks that nobody runs and nothing explains. An output counts as the block before it."""
    missing, is_run = [], False
    for block in fenced(page):
        output = block.language == "text" and is_run
        is_run = output or block.language in LANGUAGES.get(page, ()) or block.text in EXAMPLES
        if not is_run and not block.reason:
            missing.append(f"{page}:{block.line} ({block.language or 'no language'})")
    return missing


@pytest.mark.parametrize("page", WRITTEN)
def test_every_block_is_run_or_says_why_not(page: str) -> None:
    assert neither(page) == [], "run it, or write <!-- not run: the reason --> before it"


@pytest.mark.parametrize("test", RUN)
def test_the_named_test_runs_the_page(test: str) -> None:
    source = (ROOT / test).read_text()
    for page in RUN[test][1]:
        named = page.removeprefix("docs/")
        parts = [named] if test != "tests/docs/test_tutorial.py" else named.split("/")
        assert all(part in source for part in parts), page


def test_the_cookbook_is_followed_as_a_folder() -> None:
    assert 'COOKBOOK.glob("*.md")' in (ROOT / COOKBOOK).read_text()


def test_blocks_are_found() -> None:
    """All of them: each fence opens or closes one."""
    for page in WRITTEN:
        marks = re.findall(r"^```", (ROOT / page).read_text(), re.MULTILINE)
        assert len(marks) == 2 * len(fenced(page)), page
