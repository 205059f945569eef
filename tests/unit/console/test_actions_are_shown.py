"""Each change that the console makes is an action, and each action is shown as code where it can be made."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.console.acting import ACTIONS

CONSOLE = ACTIONS.parent
# What a page may ask by itself: nothing that changes something.
READS = {
    "api/client": {"address", "get", "onUnauthorized", "read", "segment"},
    "api/files": {"MAX_SHOWN_BYTES", "download", "listFolder", "readFile", "stat"},
}
PAGES = [
    path
    for path in sorted(CONSOLE.rglob("*.tsx"))
    # These get an action, and show it or what it is given.
    if path.relative_to(CONSOLE).as_posix()
    not in {"parts/ActionButton.tsx", "parts/Confirm.tsx", "parts/CopyAs.tsx"}
]


def _imported(source: str) -> Iterator[tuple[str, set[str]]]:
    """Modules below the console's folder, and the names that a file imports from each."""
    for names, module in re.findall(r"import \{([^}]*)\} from \"\.[./]*/([^\"]*)\"", source):
        yield (
            module,
            {
                name.strip()
                for name in names.split(",")
                if name.strip() and not name.strip().startswith("type ")
            },
        )


def _shown(name: str, source: str) -> bool:
    """Whether an action of this name is given to what shows it as code: directly, or as a constant."""
    if re.search(rf"\b(command|action)=\{{[^\n]*\b{name}\(", source):
        return True
    constants = re.findall(rf"const (\w+) = {name}\(", source)
    given = r"\b(?:command|action)=\{{(?:\{{ \.\.\.)?{constant}\b"
    return any(re.search(given.format(constant=constant), source) for constant in constants)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(CONSOLE).as_posix())
def test_a_page_changes_nothing_but_by_actions_that_it_shows(page: Path) -> None:
    source = page.read_text()
    for module, names in _imported(source):
        if module in READS:
            assert names <= READS[module], f"{names - READS[module]} of {module}"
        if module.startswith("actions/"):
            for name in names - {"OURS", "newExecId"}:
                assert _shown(name, source), f"{name} has no CopyAs"
    assert not re.search(r"\b(fetch|sendBeacon|XMLHttpRequest|WebSocket|EventSource)\b *\(", source)


def test_each_action_is_on_a_page() -> None:
    everything = "\n".join(page.read_text() for page in PAGES)
    for path in ACTIONS.glob("*.ts"):
        if path.stem not in ("action", "words"):
            for name in re.findall(r"^export function (\w+)", path.read_text(), re.MULTILINE):
                assert re.search(rf"\b{name}\b", everything), name


@pytest.mark.parametrize("folder", ["pages", "parts"])
def test_no_module_beside_the_pages_asks_the_server(folder: str) -> None:
    for path in sorted((CONSOLE / folder).rglob("*.ts")):
        for module, names in _imported(path.read_text()):
            assert names <= READS.get(module, names), path
