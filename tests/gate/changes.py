"""What git says of the change under test."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Names the commit that the change stands on, where CI knows it.
BASE_VARIABLE = "GATE_BASE"
# Commits made within this time of the last one are proposed together, and CI sees only the last one.
TOGETHER_S = 4 * 3600


class NoHistory(Exception):
    """Git cannot say what changed, as in a source archive or a shallow clone."""


@dataclass(frozen=True)
class Change:
    """``paths``: changed, committed or not. ``seed``: the last commit. ``since``: where the change begins, in words."""

    seed: str
    paths: frozenset[str]
    since: str = ""


def current_change(root: Path = ROOT) -> Change:
    if _git(root, "rev-parse", "--is-shallow-repository") == "true":
        raise NoHistory("this clone has no history (`git fetch --unshallow` gets it)")
    head = _git(root, "rev-parse", "HEAD")
    base = _base(root, head)
    # Without renames, so that a moved file counts for the place that it left, too.
    paths = _git(root, "diff", "--name-only", "--no-renames", base).splitlines()
    paths += _git(root, "ls-files", "--others", "--exclude-standard").splitlines()
    since = f"{len(set(paths))} files changed since commit {base[:12]}"
    return Change(seed=head, paths=frozenset(paths), since=since)


def _base(root: Path, head: str) -> str:
    """The commit that the change stands on: where it left the main branch, or the last one of an earlier day's work."""
    if named := os.environ.get(BASE_VARIABLE):
        return _git(root, "rev-parse", "--verify", f"{named}^{{commit}}")
    if _git(root, "branch", "--remotes", "--list", "origin/main"):
        fork = _git(root, "merge-base", "origin/main", head)
        if fork != head:
            return fork
    # Seen from the commit, not from now: a clone of next week gates the same change. By first parents: a merged
    # branch is part of the change, however old its commits are.
    made = int(_git(root, "show", "-s", "--format=%ct", head))
    earlier = _git(root, "rev-list", "-1", "--first-parent", f"--before={made - TOGETHER_S}", head)
    return earlier or _git(root, "rev-list", "--max-parents=0", head).split()[0]


def _git(root: Path, *arguments: str) -> str:
    try:
        ran = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True)
    except OSError as problem:
        raise NoHistory(f"git cannot be run: {problem}") from problem
    except subprocess.CalledProcessError as problem:
        raise NoHistory(f"`git {' '.join(arguments)}` failed: {problem.stderr.strip()}") from problem
    return ran.stdout.strip()
