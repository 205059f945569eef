"""Each command of ours that a page names exists, with the options that the page gives it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from sandlot.cli.main import app
from sandlot.reference.pages import PAGES

ROOT = Path(__file__).parents[3]
GENERATED = {ROOT / "docs/reference" / name for name in PAGES}
# These show what there was before.
FORMER = {ROOT / "CHANGELOG.md", ROOT / "docs/howto/upgrade-to-0.2.md"}
WRITTEN = sorted(
    {
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("src/**/README.md"),
        ROOT / "deploy/README.md",
    }
    - GENERATED
    - FORMER
)
PROGRAM = get_command(app)
CODE = re.compile(r"`([^`]+)`|^```\w*(?: \w+)?\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(
    r"(?:^ *|\$ |\$\(|sudo |/bin/|[;|&] |SANDLOT_\w+=\S+ )sandlot ([a-z][^\n|;)#>]*)", re.MULTILINE
)


def commands_of(page: Path) -> list[list[str]]:
    """In code alone. What follows a pipe, a semicolon or a comment is not the command's."""
    code = [" ".join(inline.split()) or block for inline, block in CODE.findall(page.read_text())]
    return [found.split() for each in code for found in COMMAND.findall(each)]


def wrong_in(words: list[str]) -> str:
    """What of a command does not exist. A group may be named alone; what comes after ``--`` is the sandbox's."""
    command, rest = PROGRAM, list(words)
    while rest and isinstance(command, TyperGroup) and rest[0] in command.commands:
        command = command.commands[rest.pop(0)]
    if isinstance(command, TyperGroup):
        return "" if not rest or rest == ["…"] or rest[0].startswith("--") else rest[0]
    options = {each for parameter in command.params for each in (*parameter.opts, *parameter.secondary_opts)}
    own = rest[: rest.index("--")] if "--" in rest else rest
    return " ".join(word for word in own if word.startswith("--") and word.partition("=")[0] not in options)


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_exist(page: Path) -> None:
    assert {" ".join(words): wrong for words in commands_of(page) if (wrong := wrong_in(words))} == {}


def test_commands_are_found() -> None:
    operations = ROOT / "docs/operations"
    assert ["worker", "undrain"] in commands_of(operations / "alerts.md")
    assert ["backup", "take", "/backup/2026-11-19"] in commands_of(operations / "backup.md")
    assert sum(len(commands_of(page)) for page in WRITTEN) > 150


@pytest.mark.parametrize(
    ("command", "wrong"),
    [
        ("fleet drain w1", ""),
        ("fleet", ""),
        ("fleet drian w1", "drian"),
        ("health", "health"),
        ("keys rotate KEY_ID --grace 1h", ""),
        ("keys rotate KEY_ID --grase=1h", "--grase=1h"),
        ("exec SESSION -- ls --all", ""),
    ],
)
def test_a_command_that_is_not_there(command: str, wrong: str) -> None:
    assert wrong_in(command.split()) == wrong
