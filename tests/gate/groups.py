"""A group is what one process runs in one go: a test class, or the functions of a test file.

The tests of a group share their fixtures (a server, a fleet), so splitting one would set these up twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase


def group_of(nodeid: str) -> str:
    """``tests/a/test_b.py``, or ``tests/a/test_b.py::TestClass``."""
    path, *names = nodeid.partition("[")[0].split("::")
    return "::".join([path, *names[:-1]])


def within(path: str, places: Iterable[str]) -> bool:
    """Whether one of the places is the path itself, or a folder or file that it lies in; ``*`` stands for any name."""
    return any(
        path == place or path.startswith((f"{place}/", f"{place}::")) or fnmatchcase(path, place)
        for place in places
    )
