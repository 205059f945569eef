"""The table of the SDK's methods on its page, and which of them programs have called."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterable, Mapping
from functools import cache

from tests.e2b.clients import NEWEST, PROGRAMS, ROOT, Found

PAGE = ROOT / "docs/howto/e2b-sdk-methods.md"
ROW = re.compile(r"\| `(\w+)` \| (yes|partly|no) \| ?(.*)\|")
# Where programs call the methods of each class. Nothing of ``Secret`` works.
CALLED_BY = {
    "tests/e2b/test_python_sdk.py": (
        "Sandbox",
        "sandbox.commands",
        "A command's handle",
        "sandbox.pty",
        "sandbox.files",
        "A watch's handle",
        "sandbox.git",
    ),
    "tests/e2b/test_workspaces.py": ("Volume",),
    "tests/e2b/test_builds.py": ("Template",),
    "tests/e2b/code/test_code_interpreter.py": ("Code interpreter",),
}

Table = dict[str, dict[str, tuple[str, str]]]


def table() -> Table:
    """By class and method: whether it works, and what the page says about it."""
    found: Table = {}
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


@cache
def installed() -> Mapping[str, Mapping[str, Mapping[str, str]]]:
    """By class, by ``sync`` and ``async``, and by method: under which name programs count its calls."""
    done = subprocess.run([NEWEST, PROGRAMS / "sdk_methods.py"], capture_output=True, text=True, check=True)
    found: dict[str, dict[str, dict[str, str]]] = json.loads(done.stdout)
    return found


def assert_all_called(test_file: str, flavour: str, runs: Iterable[Found]) -> None:
    """Each method that works, of the classes of this test's file, was called by one of the programs."""
    called = set().union(*(found.calls for found in runs))
    (titles,) = (titles for path, titles in CALLED_BY.items() if test_file.endswith(path))
    never = [
        f"{title} {name}"
        for title in titles
        for name, counted_as in installed()[title][flavour].items()
        if table()[title][name][0] != "no" and counted_as not in called
    ]
    assert not never, f"no {flavour} program calls: {never}"
