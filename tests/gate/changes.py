"""What git says of the change under test."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Commits made within this time of the last one are proposed together, and CI sees only the last one.
TOGETHER_S = 4 * 3600


@dataclass(frozen=True)
class Change:
    """``paths``: changed by the commits under test and by what is not committed yet. ``seed``: the last commit."""

    seed: str
    paths: frozenset[str]


def current_change() -> Change:
    """Without git (a source archive) nothing is known to have changed."""
    head = _git("rev-parse", "HEAD").strip()
    if not head:
        return Change(seed="", paths=frozenset())
    committed = _git("diff", "--name-only", _base(head), head)
    uncommitted = _git("diff", "--name-only", "HEAD") + _git("ls-files", "--others", "--exclude-standard")
    return Change(seed=head, paths=frozenset((committed + uncommitted).splitlines()))


def _base(head: str) -> str:
    """The commit that the change stands on: where it left the main branch, or the last one of an earlier day's work."""
    fork = _git("merge-base", "origin/main", head).strip()
    if fork and fork != head:
        return fork
    # Seen from the commit, not from now: a clone of next week gates the same change.
    made = _git("show", "-s", "--format=%ct", head).strip()
    earlier = _git("rev-list", "-1", f"--before={int(made) - TOGETHER_S}", head).strip()
    return earlier or _git("rev-list", "--max-parents=0", head).split()[0]


def _git(*arguments: str) -> str:
    try:
        ran = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return ran.stdout if ran.returncode == 0 else ""
