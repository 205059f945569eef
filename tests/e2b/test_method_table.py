"""The table of the SDK's methods has exactly those that the installed SDK has, and "yes" means that a program calls it."""

from __future__ import annotations

import json
import re
import subprocess

import pytest

from tests.e2b.clients import NEWEST, PROGRAMS, ROOT

PAGE = ROOT / "docs/howto/e2b-sdk-methods.md"
ROW = re.compile(r"\| `(\w+)` \| (yes|partly|no) \| ?(.*)\|")
# Their methods go through ``commands.run``, or ask no server.
NOT_CALLED_ONE_BY_ONE = ("sandbox.git", "Template")


def table() -> dict[str, dict[str, tuple[str, str]]]:
    found: dict[str, dict[str, tuple[str, str]]] = {}
    title = ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            title = line.removeprefix("## ")
            found[title] = {}
        elif (row := ROW.fullmatch(line)) is not None:
            assert row[1] not in found[title], f"{row[1]} is there twice"
            found[title][row[1]] = (row[2], row[3].strip())
        else:
            assert not line.startswith("| `"), f"not a row: {line}"
    return found


@pytest.fixture(scope="module")
def installed() -> dict[str, list[str]]:
    done = subprocess.run([NEWEST, PROGRAMS / "sdk_methods.py"], capture_output=True, text=True, check=True)
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


def test_the_table_has_the_methods_of_the_installed_sdk(installed: dict[str, list[str]]) -> None:
    assert {title: sorted(rows) for title, rows in table().items()} == installed


def test_what_works_partly_says_what_does_not() -> None:
    silent = [
        f"{title} {name}"
        for title, rows in table().items()
        for name, (works, why) in rows.items()
        if works == "partly" and not why
    ]
    assert silent == []


def test_a_program_calls_what_works() -> None:
    programs = "".join(path.read_text() for path in sorted(PROGRAMS.glob("*_calls.py")))
    never = [
        f"{title} {name}"
        for title, rows in table().items()
        for name, (works, _) in rows.items()
        if works != "no" and title not in NOT_CALLED_ONE_BY_ONE and f".{name}" not in programs
    ]
    assert never == []
