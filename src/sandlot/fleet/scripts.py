"""The operations of the directory as Lua, each one atomic call in Redis."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

_FOLDER = Path(__file__).parent / "scripts"
# A full Redis refuses new places. What keeps the fleet alive, frees memory, or writes down what exists
# already goes on: if a report were refused, all workers would look dead because the memory is full.
_REFUSED_WHEN_FULL = frozenset({"place"})


@dataclass(frozen=True, slots=True)
class Script:
    name: str
    text: str
    sha: str


def load() -> dict[str, Script]:
    prelude = (_FOLDER / "prelude.lua").read_text()
    scripts = {}
    for path in sorted(_FOLDER.glob("*.lua")):
        if path.stem == "prelude":
            continue
        flags = "" if path.stem in _REFUSED_WHEN_FULL else "allow-oom"
        text = f"#!lua flags={flags}\n{prelude}\n{path.read_text()}"
        scripts[path.stem] = Script(
            path.stem, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
        )
    return scripts
