"""Loads operations from a folder of Lua scripts, each one atomic call in Redis."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sandlot.domain.callers.rates import Rate

# Where scripts that count events against a rate begin.
GCRA: Final = Path(__file__).parent / "gcra.lua"


@dataclass(frozen=True, slots=True)
class Script:
    name: str
    text: str
    sha: str


def load_scripts(
    folder: Path, *, refused_when_full: Collection[str], before: Path | None = None
) -> dict[str, Script]:
    """The folder's scripts by name, each with the folder's prelude, and with the file ``before`` ahead of it.

    A Redis without free memory runs all but ``refused_when_full``.
    """
    shared = "" if before is None else before.read_text() + "\n"
    prelude = shared + (folder / "prelude.lua").read_text()
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


def pack_rate(rate: Rate) -> tuple[Any, ...]:
    """A rate as ``gcra.lua`` reads it."""
    return rate.name, rate.interval_s * 1000, rate.burst
