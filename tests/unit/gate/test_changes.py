"""Which commits are the change under test, asked of repositories made for it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from tests.gate.changes import TOGETHER_S, Change, NoHistory, current_change

NOON = 1_700_000_000


class Repository:
    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()
        self.git("init", "-q", "-b", "main")

    def git(self, *arguments: str, at: int = NOON) -> None:
        date = f"{at} +0000"
        who = {
            "GIT_AUTHOR_NAME": "a",
            "GIT_AUTHOR_EMAIL": "a@b",
            "GIT_COMMITTER_NAME": "a",
            "GIT_COMMITTER_EMAIL": "a@b",
        }
        environment = os.environ | who | {"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
        subprocess.run(["git", *arguments], cwd=self.root, check=True, capture_output=True, env=environment)

    def commit(self, path: str, at: int) -> None:
        (self.root / path).write_text(path * 10)
        self.git("add", path)
        self.git("commit", "-qm", path, at=at)

    def change(self) -> Change:
        return current_change(self.root)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    monkeypatch.delenv("GATE_BASE", raising=False)
    made = Repository(tmp_path / "made")
    made.commit("old", NOON)
    return made


def test_commits_of_one_sitting_and_what_is_not_committed(repository: Repository) -> None:
    repository.commit("first", NOON + TOGETHER_S + 60)
    repository.commit("second", NOON + 2 * TOGETHER_S)
    (repository.root / "new").write_text("")
    assert repository.change().paths == {"first", "second", "new"}


def test_branch_counts_from_where_it_left_main(repository: Repository, tmp_path: Path) -> None:
    clone = Repository(tmp_path / "clone")
    clone.git("pull", "-q", str(repository.root), "main")
    clone.git("remote", "add", "origin", str(repository.root))
    clone.git("fetch", "-q", "origin")
    clone.commit("early", NOON + 60)
    clone.commit("late", NOON + 10 * TOGETHER_S)
    assert clone.change().paths == {"early", "late"}


def test_merged_branch_counts_however_old_it_is(repository: Repository) -> None:
    repository.git("checkout", "-qb", "branch")
    repository.commit("branch", NOON + 60)
    repository.git("checkout", "-q", "main")
    repository.commit("main", NOON + 120)
    repository.git("merge", "-q", "--no-ff", "-m", "merge", "branch", at=NOON + 3 * TOGETHER_S)
    assert repository.change().paths == {"branch"}


def test_moved_file_counts_for_both_places(repository: Repository) -> None:
    repository.git("mv", "old", "moved")
    repository.git("commit", "-qm", "move", at=NOON + 3 * TOGETHER_S)
    assert repository.change().paths == {"old", "moved"}


def test_named_base(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    repository.commit("first", NOON + 2 * TOGETHER_S)
    repository.commit("second", NOON + 4 * TOGETHER_S)
    assert repository.change().paths == {"second"}
    monkeypatch.setenv("GATE_BASE", "HEAD~2")
    assert repository.change().paths == {"first", "second"}
    monkeypatch.setenv("GATE_BASE", "nothing-of-this-name")
    with pytest.raises(NoHistory, match="nothing-of-this-name"):
        repository.change()


def test_without_history_nothing_is_guessed(repository: Repository, tmp_path: Path) -> None:
    shallow = tmp_path / "shallow"
    subprocess.run(["git", "clone", "-q", "--depth=1", f"file://{repository.root}", shallow], check=True)
    with pytest.raises(NoHistory, match="unshallow"):
        current_change(shallow)
    with pytest.raises(NoHistory, match="not a git repository"):
        current_change(tmp_path)
