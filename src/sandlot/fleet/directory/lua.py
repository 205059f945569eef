"""Loads operations from a folder of Lua scripts, each one atomic call in Redis."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Script:
    name: str
    text: str
    sha: str


def load_scripts(folder: Path, *, refused_when_full: Collection[str]) -> dict[str, Script]:
    """The folder's scripts by name, each with the folder's prelude.

    A Redis without free memory runs all but ``refused_when_full``.
    """
    prelude = (folder / "prelude.lua").read_text()
    scripts = {}
    for path in sorted(folder.glob("*.lua")):
        if path.stem == "prelude":
            continue
        flags = "" if path.stem in refused_when_full else "allow-oom"
        text = f"#!lua flags={flags}\n{prelude}\n{path.read_text()}"
        scripts[path.stem] = Script(
            path.stem, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
        )
    return scripts
