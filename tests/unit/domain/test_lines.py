"""Lines of steps: when a step uses the files as they are, and when a snapshot is the last one again."""

from __future__ import annotations

import pytest

from sandlot.domain.errors import Conflict
from sandlot.domain.workspaces.lines import (
    Line,
    begun,
    check_ends,
    goes_on,
    line_after,
    line_of,
    may_answer_with_head,
)
from sandlot.domain.workspaces.snapshots import TakeSnapshot
from sandlot.domain.workspaces.workspace import Workspace

A, B = "snp_" + "a" * 32, "snp_" + "b" * 32
ENDS, OWN = TakeSnapshot(step="one"), TakeSnapshot("my own")


@pytest.mark.parametrize(
    ("line", "wanted", "step", "as_they_are"),
    [
        (Line(A), A, "one", True),  # nothing was done since the snapshot
        (Line(A, "one", A, open=True), A, "one", True),  # the same step again
        (Line(B, "one", A), A, "one", True),  # another part of it
        (Line(B, "one", A), B, "one", False),  # a step of the same name that begins elsewhere
        (Line(A, "one", A, open=True), A, "two", False),  # what step one did and never ended is in the files
        (Line(B, "one", A), B, "two", True),
        (Line(B, "one", A), A, "two", False),
        (Line(A), B, "one", False),
        (Line(), A, "one", False),
    ],
)
def test_a_step_goes_on_only_from_its_snapshot(line: Line, wanted: str, step: str, as_they_are: bool) -> None:
    assert goes_on(line, wanted, step) == as_they_are


def test_a_workspace_without_a_line_has_the_files_that_it_began_with() -> None:
    assert line_of(None, Workspace("wsp_1")) == Line()
    assert line_of(None, Workspace("wsp_1", snapshot=A)) == Line(A)
    assert line_of(Line(B, "one"), Workspace("wsp_1", snapshot=A)) == Line(B, "one")


def test_the_end_of_a_step_moves_its_line_and_nothing_else_does() -> None:
    line = begun(Line(A), A, "one")
    ended = line_after(line, ENDS, B)
    assert ended == Line(B, "one", A, open=False)
    assert line_after(line, OWN, B) is None
    assert line_after(Line(), OWN, B, base=True) == Line(B)
    assert goes_on(ended, B, "two")


def test_a_step_that_goes_on_keeps_what_it_began_with() -> None:
    ended = line_after(begun(Line(A), A, "one"), ENDS, B)
    assert ended is not None
    assert begun(ended, A, "one") == Line(B, "one", A, open=True)
    assert begun(ended, B, "two") == Line(B, "two", B, open=True)


def test_only_a_step_may_be_answered_with_the_last_snapshot() -> None:
    assert may_answer_with_head(Line(A, "one"), ENDS)
    assert not may_answer_with_head(Line(A), OWN)
    assert not may_answer_with_head(Line(), ENDS)


def test_only_the_step_that_has_the_files_can_end() -> None:
    check_ends(begun(Line(A), A, "one"), ENDS)
    check_ends(begun(Line(A), A, "two"), OWN)
    for line in (Line(), Line(A), begun(Line(A), A, "two")):
        with pytest.raises(Conflict):
            check_ends(line, ENDS)
