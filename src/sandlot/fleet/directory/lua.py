"""Loads the directory's operations: Lua scripts, each one atomic call in Redis."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

_FOLDER = Path(__file__).parent / "scripts"
# A full Redis refuses only new places. Scripts that keep the fleet alive, free memory or record
# existing sessions still run: if Redis refused reports, full memory would make workers look dead.
_REFUSED_WHEN_FULL = frozenset({"place"})


@dataclass(frozen=True, slots=True)
class Script:
    name: str
    text: str
    sha: str


def load_scripts() -> dict[str, Script]:
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
